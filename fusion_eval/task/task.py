"""A task: what to measure, and how a model's outputs become predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

if TYPE_CHECKING:
    from torchmetrics import Metric

PredictFn = Callable[[nn.Module, Any], tuple[Any, Any]]
"""(model, x) -> (predictions, probabilities); where there are none, the second is None or the predictions again."""

UpdateFn = Callable[[Mapping[str, "Metric"], Any, Any, Any], None]
"""(battery, preds, probs, target): owns every `metric.update` call."""


class Battery(Protocol):
    """Builds fresh metrics by name."""

    def __call__(self, num_classes: int | None, ignore_index: int | None = None) -> dict[str, Metric]:
        """New metrics, without state."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure on the outputs of a model.

    Args:
        battery: builds the metrics.
        predict_fn: turns a model and an input into (predictions, probabilities).
        prob_metrics: names of the metrics that are fed probabilities instead of predictions.
        requires_num_classes: whether the battery needs the number of classes.
        description: one line for `list_tasks`.
        update_fn: owns the metric updates where they are not `metric.update(preds, target)`.
    """

    battery: Battery
    predict_fn: PredictFn
    prob_metrics: frozenset[str] = frozenset()
    requires_num_classes: bool = True
    description: str = ""
    update_fn: UpdateFn | None = None
