"""Object detection: one dictionary of boxes, scores and labels per image against one of boxes and labels."""

from __future__ import annotations

from typing import Any

from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.inputs import as_lists
from fusion_eval.task.predict import Passthrough
from fusion_eval.task.task import Task

_VISION = {"torchvision": "vision"}
_COCO = {"torchvision": "vision", "pycocotools": "detection"}


def _overlap(kind: str, **options: Any) -> MakeMetric:
    return metric_of("fusion_eval.task.metric.boxes:MatchedOverlap", kind=kind, **options)


BATTERY = OfferedBattery(
    "detection",
    {
        "map": Offer(
            metric_of("fusion_eval.task.metric.coco:CocoPrecision", box_format="xyxy", iou_type="bbox"), _COCO
        ),
        "iou": Offer(_overlap("iou"), _VISION),
        "giou": Offer(_overlap("giou"), _VISION),
        "ciou": Offer(_overlap("ciou"), _VISION),
        "diou": Offer(_overlap("diou"), _VISION),
        "iou_at_50": Offer(_overlap("iou", threshold=0.5), _VISION, default=False),
    },
)

DETECTION = Task(
    battery=BATTERY,
    predict_fn=Passthrough(),
    requires_num_classes=False,
    description="Object detection: boxes (xyxy), scores, labels per image; COCO's mAP, overlap of matched boxes.",
    unit="image",
    collate=as_lists,
)
