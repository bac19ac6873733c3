"""Which metric is fed what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fusion_eval.errors import EvaluationError, Fault, FusionEvalError
from fusion_eval.evaluation.columns import length_of, part_of
from fusion_eval.evaluation.spill import pieces
from fusion_eval.task.task import FeedFn, Task

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric


def feed_of(task: Task) -> FeedFn:
    """How one metric of the task is updated."""
    return task.feed or _update


def wants_probabilities(task: Task, metric: str) -> bool:
    """Whether a metric is fed probabilities."""
    return metric in task.prob_metrics


def needs_probabilities(metric: Metric) -> bool:
    """Whether the metric cannot be computed from labels alone."""
    from torchmetrics.classification import (
        BinaryCalibrationError,
        BinaryPrecisionRecallCurve,
        MulticlassCalibrationError,
        MulticlassPrecisionRecallCurve,
        MultilabelPrecisionRecallCurve,
    )

    from fusion_eval.task.metric.scores import BrierScore, NegativeLogLikelihood

    kinds = (
        BinaryCalibrationError,
        BinaryPrecisionRecallCurve,
        MulticlassCalibrationError,
        MulticlassPrecisionRecallCurve,
        MultilabelPrecisionRecallCurve,
        BrierScore,
        NegativeLogLikelihood,
    )
    top_k = getattr(metric, "top_k", 1)
    return isinstance(metric, kinds) or (isinstance(top_k, int) and top_k > 1 and hasattr(metric, "num_classes"))


@contextmanager
def fed(task: Task, metric: str, where: str) -> Iterator[None]:
    """What a metric raises while it is fed, as one clear error."""
    try:
        yield
    except FusionEvalError:
        raise
    except Exception as error:
        detail = " ".join(str(error).split())
        found = f"{type(error).__name__}: {detail}"
        raise EvaluationError(Fault(f"{where}, metric '{metric}'", found, do=_hint(task, metric, detail))) from error


def _hint(task: Task, metric: str, detail: str) -> str:
    if task.update_fn is not None:
        return "Check the task's update_fn; it is called once, with all items."
    if "in `target`" in detail or detail.startswith("index "):
        return "Check the labels."
    if wants_probabilities(task, metric):
        return "It was fed the probabilities that predict_fn returned."
    return f"It was fed predictions. If it wants probabilities, add '{metric}' to prob_metrics."


def feed_all(task: Task, metric: Metric, preds: Any, target: Any) -> None:
    """Update a metric with all items at once, or one by one where their tensors have different shapes.

    Outputs that are large come in pieces, so that no metric makes copies of all of them.
    """
    feed = feed_of(task)
    if not (_is_ragged(preds) or _is_ragged(target)):
        whole = task.feed is not None or not (isinstance(preds, torch.Tensor) and isinstance(target, torch.Tensor))
        for part in [slice(0, None)] if whole else pieces(preds):
            feed(metric, part_of(preds, part), part_of(target, part))
        return
    if all(_is_ragged(value) and value[0].ndim == 1 for value in (preds, target)):  # what a mask left of each item
        feed(metric, torch.cat(preds), torch.cat(target))
        return
    for i in range(length_of(target)):
        one = slice(i, i + 1)
        feed(metric, _stacked(part_of(preds, one)), _stacked(part_of(target, one)))


def _is_ragged(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and hasattr(value[0], "unsqueeze")


def _stacked(value: Any) -> Any:
    first: Tensor = value[0]
    return first.unsqueeze(0) if _is_ragged(value) else value


def _update(metric: Metric, preds: Any, target: Any) -> None:
    metric.update(preds, target)
