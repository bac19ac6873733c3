"""A task: what to measure, and how a model's outputs become predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

if TYPE_CHECKING:
    from torchmetrics import Metric

PredictFn = Callable[[nn.Module, Any], tuple[Any, Any]]
"""(model, x) -> (predictions, probabilities); where there are none, the second is None or the predictions again."""

UpdateFn = Callable[[Mapping[str, "Metric"], Any, Any, Any], None]
"""(battery, preds, probs, target): owns every `metric.update` call; called once, with all items."""

FeedFn = Callable[["Metric", Any, Any], None]
"""(metric, predictions or probabilities, target): one metric's own way of `metric.update`."""

AlignFn = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""(predictions, probabilities, target) -> the same in the shapes and types that the metrics take."""

BatchFields = Sequence[str] | Mapping[str, str]
"""What the parts of a batch are: roles in a tuple's order, or by a dictionary's keys; see `task.inputs`."""


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
        update_fn: owns the updates of the whole battery where they are not `metric.update(preds, target)`.
        feed: owns the update of one metric, with which any of the battery can be fed alone or item by item.
        align: brings predictions and targets of the domain into one shape.
        fields: what the parts of a batch are, where it is neither a pair nor a dictionary with a usual label name.
        count_classes: reads the number of classes, labels or outputs off the first batch's targets, where they tell it.
        collate: puts a data set's items into a batch, where PyTorch's own way cannot.
        unit: what one item of the data is, for reports; "query" where documents are grouped into queries.
        dense: whether outputs are too large to keep (class maps, images, token logits), so that per-item sufficient
            statistics of the metrics are kept in their place; it is not done where a metric has none.
    """

    battery: Battery
    predict_fn: PredictFn
    prob_metrics: frozenset[str] = frozenset()
    requires_num_classes: bool = True
    description: str = ""
    update_fn: UpdateFn | None = None
    feed: FeedFn | None = None
    align: AlignFn | None = None
    fields: BatchFields | None = None
    count_classes: Callable[[Any], int | None] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    unit: str = "item"
    dense: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prob_metrics", frozenset(self.prob_metrics))
