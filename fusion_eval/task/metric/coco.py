"""COCO's average precision and recall as plain numbers."""

from __future__ import annotations

from typing import Any

from torchmetrics.detection import MeanAveragePrecision

_NOT_NUMBERS = ("classes", "map_per_class", "mar_100_per_class")


class CocoPrecision(MeanAveragePrecision):
    """mAP and mAR over thresholds and sizes; a size of which there is no object is NaN, not -1."""

    def compute(self) -> dict[str, Any]:
        """The numbers by name."""
        numbers = {name: value for name, value in super().compute().items() if name not in _NOT_NUMBERS}
        return {name: value if float(value) >= 0 else value * float("nan") for name, value in numbers.items()}
