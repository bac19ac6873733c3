"""Binary and multilabel classification: one logit per item, or per item and label, against zeros and ones."""

from __future__ import annotations

from typing import Any

from fusion_eval.task import align
from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import SigmoidPredict
from fusion_eval.task.regression import outputs_of
from fusion_eval.task.task import Task

_OWN = "fusion_eval.task.metric"


def _binary(name: str, **options: Any) -> MakeMetric:
    return metric_of(f"torchmetrics.classification:Binary{name}", ignores=True, **options)


def _multilabel(name: str, **options: Any) -> MakeMetric:
    path = f"torchmetrics.classification:Multilabel{name}"
    return metric_of(path, classes="num_labels", ignores=True, **options)


BINARY_BATTERY = OfferedBattery(
    "binary",
    {
        "accuracy": Offer(_binary("Accuracy")),
        "f1": Offer(_binary("F1Score")),
        "precision": Offer(_binary("Precision")),
        "recall": Offer(_binary("Recall")),
        "specificity": Offer(_binary("Specificity")),
        "auroc": Offer(metric_of(f"{_OWN}.auroc:ExactBinaryAUROC", ignores=True)),
        "average_precision": Offer(_binary("AveragePrecision")),
        "ece": Offer(_binary("CalibrationError", n_bins=15, norm="l1")),
        "mcc": Offer(_binary("MatthewsCorrCoef"), default=False),
        "kappa": Offer(_binary("CohenKappa"), default=False),
        "nll": Offer(metric_of(f"{_OWN}.scores:NegativeLogLikelihood"), default=False),
        "brier": Offer(metric_of(f"{_OWN}.scores:BrierScore"), default=False),
    },
)

MULTILABEL_BATTERY = OfferedBattery(
    "multilabel",
    {
        "accuracy": Offer(_multilabel("Accuracy", average="macro")),
        "f1": Offer(_multilabel("F1Score", average="macro")),
        "precision": Offer(_multilabel("Precision", average="macro")),
        "recall": Offer(_multilabel("Recall", average="macro")),
        "auroc": Offer(metric_of(f"{_OWN}.auroc:PresentLabelAUROC", classes="num_labels", ignores=True)),
        "average_precision": Offer(
            metric_of(f"{_OWN}.precision:PresentLabelPrecision", classes="num_labels", ignores=True)
        ),
        "exact_match": Offer(_multilabel("ExactMatch")),
        "hamming": Offer(_multilabel("HammingDistance", average="macro")),
        "f1_micro": Offer(_multilabel("F1Score", average="micro"), default=False),
        "f1_per_class": Offer(_multilabel("F1Score", average="none"), default=False),
        "ranking_loss": Offer(_multilabel("RankingLoss"), default=False),
        "coverage_error": Offer(_multilabel("CoverageError"), default=False),
    },
)

BINARY = Task(
    battery=BINARY_BATTERY,
    predict_fn=SigmoidPredict(),
    align=align.zeros_and_ones,
    prob_metrics=frozenset({"auroc", "average_precision", "ece", "nll", "brier"}),
    requires_num_classes=False,
    description="Binary classification: logits (N,), (N, 1) or (N, 2) against zeros and ones (N,).",
)

MULTILABEL = Task(
    battery=MULTILABEL_BATTERY,
    predict_fn=SigmoidPredict(binary=False),
    align=align.zeros_and_ones,
    prob_metrics=frozenset({"auroc", "average_precision", "ranking_loss", "coverage_error"}),
    description="Multilabel classification: logits (N, L) against zeros and ones (N, L).",
    count_classes=outputs_of,
)
