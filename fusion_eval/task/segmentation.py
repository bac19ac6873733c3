"""Semantic segmentation: logits (N, C, H, W) against class maps (N, H, W)."""

from __future__ import annotations

from fusion_eval.task.battery import Offer, OfferedBattery
from fusion_eval.task.classification import multiclass
from fusion_eval.task.predict import ArgmaxPredict
from fusion_eval.task.task import Task

BATTERY = OfferedBattery(
    "segmentation",
    {
        "miou": Offer(multiclass("JaccardIndex", average="macro")),
        "dice": Offer(multiclass("F1Score", average="macro")),
        "pixel_acc": Offer(multiclass("Accuracy", average="micro")),
        "precision": Offer(multiclass("Precision", average="macro")),
        "recall": Offer(multiclass("Recall", average="macro")),
        "iou_micro": Offer(multiclass("JaccardIndex", average="micro"), default=False),
        "iou_per_class": Offer(multiclass("JaccardIndex", average="none"), default=False),
        "dice_per_class": Offer(multiclass("F1Score", average="none"), default=False),
    },
)

SEGMENTATION = Task(
    battery=BATTERY,
    predict_fn=ArgmaxPredict(dim=1),
    description="Semantic segmentation: logits (N, C, H, W) against class maps (N, H, W); ignore_index is void.",
    unit="image",
)
