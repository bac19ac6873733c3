"""Multiclass classification: logits (N, C) against class indices (N,)."""

from __future__ import annotations

from typing import Any

from fusion_eval.task import align
from fusion_eval.task.battery import MakeMetric, Metrics, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import ArgmaxPredict
from fusion_eval.task.task import Task

__all__ = ["BATTERY", "CLASSIFICATION", "PROB_METRICS", "ArgmaxPredict", "classification_battery"]

PROB_METRICS = frozenset({"auroc", "ece", "top3_accuracy", "top5_accuracy", "average_precision", "nll", "brier"})
_OWN = "fusion_eval.task.metric"


def multiclass(name: str, **options: Any) -> MakeMetric:
    """Builds torchmetrics' `Multiclass...` of that name."""
    path = f"torchmetrics.classification:Multiclass{name}"
    return metric_of(path, classes="num_classes", ignores=True, **options)


def _more(name: str, **options: Any) -> Offer:
    return Offer(multiclass(name, **options), default=False)


BATTERY = OfferedBattery(
    "classification",
    {
        "accuracy": Offer(multiclass("Accuracy", average="micro")),
        "f1": Offer(multiclass("F1Score", average="macro")),
        "precision": Offer(multiclass("Precision", average="macro")),
        "recall": Offer(multiclass("Recall", average="macro")),
        "auroc": Offer(metric_of(f"{_OWN}.auroc:PresentClassAUROC", classes="num_classes", ignores=True)),
        "ece": Offer(multiclass("CalibrationError", n_bins=15, norm="l1")),
        "f1_micro": _more("F1Score", average="micro"),
        "f1_weighted": _more("F1Score", average="weighted"),
        "balanced_accuracy": _more("Accuracy", average="macro"),
        "top3_accuracy": _more("Accuracy", average="micro", top_k=3),
        "top5_accuracy": _more("Accuracy", average="micro", top_k=5),
        "average_precision": Offer(
            metric_of(f"{_OWN}.precision:PresentClassPrecision", classes="num_classes", ignores=True), default=False
        ),
        "mcc": _more("MatthewsCorrCoef"),
        "kappa": _more("CohenKappa"),
        "iou": _more("JaccardIndex", average="macro"),
        "nll": Offer(metric_of(f"{_OWN}.scores:NegativeLogLikelihood"), default=False),
        "brier": Offer(metric_of(f"{_OWN}.scores:BrierScore"), default=False),
        "accuracy_per_class": _more("Accuracy", average="none"),
        "f1_per_class": _more("F1Score", average="none"),
        "precision_per_class": _more("Precision", average="none"),
        "recall_per_class": _more("Recall", average="none"),
    },
)


def classification_battery(num_classes: int | None, ignore_index: int | None = None) -> Metrics:
    """Micro accuracy; macro F1, precision, recall and AUROC; expected calibration error (15 bins, L1).

    AUROC is the mean over the classes among the targets. More metrics can be named: `BATTERY.names`.
    """
    return BATTERY(num_classes, ignore_index)


CLASSIFICATION = Task(
    battery=BATTERY,
    predict_fn=ArgmaxPredict(),
    prob_metrics=PROB_METRICS,
    align=align.class_indices,
    description="Multiclass classification: logits (N, C) against class indices (N,).",
)
