"""Semantic segmentation: logits (N, C, H, W) against class maps (N, H, W)."""

from __future__ import annotations

from typing import Any

from fusion_eval.task import align
from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.classification import multiclass
from fusion_eval.task.predict import ArgmaxPredict
from fusion_eval.task.task import Task


def _iou(**options: Any) -> MakeMetric:
    return metric_of("fusion_eval.task.metric.iou:ClassIoU", classes="num_classes", ignores=True, **options)


BATTERY = OfferedBattery(
    "segmentation",
    {
        "miou": Offer(_iou(average="macro")),
        "dice": Offer(multiclass("F1Score", average="macro")),
        "pixel_acc": Offer(multiclass("Accuracy", average="micro")),
        "precision": Offer(multiclass("Precision", average="macro")),
        "recall": Offer(multiclass("Recall", average="macro")),
        "iou_micro": Offer(_iou(average="micro"), default=False),
        "iou_per_class": Offer(_iou(average="none"), default=False),
        "dice_per_class": Offer(multiclass("F1Score", average="none"), default=False),
    },
)

SEGMENTATION = Task(
    battery=BATTERY,
    predict_fn=ArgmaxPredict(dim=1),
    align=align.class_indices,
    description="Semantic segmentation: logits (N, C, H, W) against class maps (N, H, W); ignore_index is void.",
    unit="image",
    dense=True,
)
