"""Multiclass classification: logits (N, C) to predictions, probabilities and the usual metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusion_eval.task.outputs import logits_of
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

PROB_METRICS = frozenset({"auroc", "ece"})


def classification_battery(num_classes: int | None, ignore_index: int | None = None) -> dict[str, Metric]:
    """Micro accuracy; macro F1, precision, recall and AUROC; expected calibration error (15 bins, L1)."""
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassCalibrationError,
        MulticlassF1Score,
        MulticlassPrecision,
        MulticlassRecall,
    )

    assert num_classes is not None
    common: dict[str, Any] = {"num_classes": num_classes, "ignore_index": ignore_index, "sync_on_compute": False}
    return {
        "accuracy": MulticlassAccuracy(average="micro", **common),
        "f1": MulticlassF1Score(average="macro", **common),
        "precision": MulticlassPrecision(average="macro", **common),
        "recall": MulticlassRecall(average="macro", **common),
        "auroc": MulticlassAUROC(average="macro", **common),
        "ece": MulticlassCalibrationError(n_bins=15, norm="l1", **common),
    }


@dataclass(frozen=True, slots=True)
class ArgmaxPredict:
    """Predictions and probabilities from logits with the classes in dimension `dim`.

    As a predict function it does both per batch; an evaluation loop that knows it calls `forward` per batch and
    `decode` once on many rows, which saves most of the small tensor operations.
    """

    dim: int = -1

    def __call__(self, model: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
        return self.decode(self.forward(model, x))

    def forward(self, model: nn.Module, x: Any) -> Tensor:
        """The logits."""
        return logits_of(model(x))

    def decode(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(class indices, probabilities in float32)."""
        return logits.argmax(self.dim), torch.softmax(logits.float(), self.dim)


CLASSIFICATION = Task(
    battery=classification_battery,
    predict_fn=ArgmaxPredict(),
    prob_metrics=PROB_METRICS,
    description="multiclass classification of logits (N, C) against class indices (N,)",
)
