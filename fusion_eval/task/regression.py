"""Regression: numbers (N,), or several outputs (N, D), against numbers of the same shape."""

from __future__ import annotations

from typing import Any

from fusion_eval.task import align
from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import TensorPredict
from fusion_eval.task.task import Task


def _of(name: str, **options: Any) -> MakeMetric:
    return metric_of(f"torchmetrics.regression:{name}", **options)


def _each(name: str, module: str = "torchmetrics.regression", **options: Any) -> MakeMetric:
    """A metric that is told how many outputs there are."""
    return metric_of(f"{module}:{name}", classes="num_outputs", least=1, **options)


def outputs_of(target: Any) -> int | None:
    """The number of outputs of targets (N, D), None for (N,) and (N, 1)."""
    shape = list(getattr(target, "shape", []))
    return int(shape[1]) if len(shape) == 2 and shape[1] > 1 else None


_SEVERAL = "fusion_eval.task.metric.several_outputs"

BATTERY = OfferedBattery(
    "regression",
    {
        "mse": Offer(_of("MeanSquaredError")),
        "mae": Offer(_of("MeanAbsoluteError")),
        "rmse": Offer(_of("MeanSquaredError", squared=False)),
        "r2": Offer(_of("R2Score")),
        "pearson": Offer(_each("MeanPearson", _SEVERAL)),
        "spearman": Offer(_each("MeanSpearman", _SEVERAL)),
        "mse_per_output": Offer(_each("MeanSquaredError"), default=False),
        "mae_per_output": Offer(_each("MeanAbsoluteError"), default=False),
        "mape": Offer(_of("MeanAbsolutePercentageError"), default=False),
        "smape": Offer(_of("SymmetricMeanAbsolutePercentageError"), default=False),
        "wmape": Offer(_of("WeightedMeanAbsolutePercentageError"), default=False),
        "explained_variance": Offer(_of("ExplainedVariance"), default=False),
        "concordance": Offer(_each("ConcordanceCorrCoef"), default=False),
        "kendall": Offer(_each("KendallRankCorrCoef"), default=False),
        "log_cosh": Offer(_each("LogCoshError"), default=False),
    },
)

REGRESSION = Task(
    battery=BATTERY,
    predict_fn=TensorPredict(),
    align=align.numbers,
    requires_num_classes=False,
    description="Regression: numbers (N,) or several outputs (N, D); errors, R2 and correlations (means over outputs).",
    count_classes=outputs_of,
)
