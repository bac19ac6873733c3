"""A metric of one model as something that can be resampled by items: scores per item, or a function of item weights.

Every form is checked against the metric's own value and left out where they differ, so that a comparison never tests
another quantity than the one it reports.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fusion_eval.errors import FusionEvalError
from fusion_eval.evaluation.columns import length_of, rebuilt
from fusion_eval.evaluation.features import FEATURES
from fusion_eval.evaluation.feeding import feed_of, wants_probabilities
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.evaluation.spill import pieces
from fusion_eval.evaluation.statistics import COUNTS, STATES, class_counts, is_additive, item_states, load_states
from fusion_eval.forms.auroc import mean_auroc
from fusion_eval.forms.coco import coco_form
from fusion_eval.forms.curve import binary_calibration, mean_average_precision
from fusion_eval.forms.texts import text_formula
from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.class_metrics import count_metric, label_metric
from fusion_eval.stats.item_metric import ItemMetric, additive_metric
from fusion_eval.stats.probability_metrics import calibration_error
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

Form = Floats | ItemMetric
"""Scores per item (items,), or a function of item weights."""

_SAME = 1e-5
_MOST_RANKED = 20_000_000
_MOST_FED = 20_000
_COUNTED = {
    "MulticlassAccuracy": "recall",
    "MulticlassRecall": "recall",
    "MulticlassPrecision": "precision",
    "MulticlassF1Score": "f1",
    "ClassIoU": "iou",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """One metric of one model: what it is, and the rows that it was computed from.

    Args:
        name: the reported name.
        metric: the metric, without state.
        battery_name: its name in the battery.
        rows: the items that count.
        task: the task.
        value: the reported value.
        higher_is_better: the direction.
    """

    name: str
    metric: Metric
    battery_name: str
    rows: Rows
    task: Task
    value: float
    higher_is_better: bool

    @property
    def columns(self) -> Mapping[str, Column]:
        """The rows' columns."""
        return self.rows.columns

    @property
    def preds(self) -> Any:
        """What the metric was fed."""
        return rebuilt(self.columns, "probs" if wants_probabilities(self.task, self.battery_name) else "pred")

    @property
    def target(self) -> Any:
        """The targets."""
        return rebuilt(self.columns, "target")


Maker = Callable[[Subject], Form | None]


def item_form(subject: Subject) -> Form | None:
    """The metric by items, or None where it has no such form (or too many items for one)."""
    for maker in (
        _of_counts,
        _of_states,
        _of_features,
        _of_labels,
        _of_probabilities,
        _of_scores,
        _of_regression,
        _of_queries,
        _of_groups,
    ):
        form = _checked(maker, subject)
        if form is not None:
            return form
    boxes = _checked(_of_boxes, subject)
    return _checked(_of_fed_items, subject) if boxes is None else boxes


def _checked(maker: Maker, subject: Subject) -> Form | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the metric's own computation has told them
            form = maker(subject)
    except FusionEvalError:  # one class among the targets and the like: the metric has a value, its form has not
        return None
    if form is None:
        return None
    found = form.value if isinstance(form, ItemMetric) else float(np.mean(form))
    same = math.isfinite(found) and abs(found - subject.value) <= _SAME * max(1.0, abs(subject.value))
    return form if same else None


def _of_counts(subject: Subject) -> Form | None:
    """Functions of hits and misses per class, from the counts that dense tasks keep."""
    counts = subject.columns.get(COUNTS)
    if not isinstance(counts, Tensor):
        return None
    return _counted(subject, counts.double().numpy())


def _counted(subject: Subject, counts: Floats) -> Form | None:
    kind, average = _COUNTED.get(type(subject.metric).__name__), getattr(subject.metric, "average", None)
    if kind is None:
        return None
    if average in ("macro", "micro"):
        return count_metric(kind, counts, average=average, name=subject.name)
    if average not in (None, "none"):
        return None
    classes = counts.shape[1] // 3
    one = int(subject.name.rpartition("_")[2])
    return count_metric(kind, counts[:, [one, classes + one, 2 * classes + one]], name=subject.name)


def _of_labels(subject: Subject) -> Form | None:
    """Accuracy, precision, recall, F1 and IoU of one label per item."""
    kind = type(subject.metric).__name__
    preds, target = subject.preds, subject.target
    if not (isinstance(preds, Tensor) and isinstance(target, Tensor) and preds.shape == target.shape):
        return None
    ignored = getattr(subject.metric, "ignore_index", None)
    if kind in ("BinaryAccuracy", "MultilabelAccuracy", "MultilabelExactMatch", "MultilabelHammingDistance"):
        return _agreement(kind, preds, target) if ignored is None else None
    if kind in ("BinaryF1Score", "BinaryPrecision", "BinaryRecall", "BinarySpecificity") and ignored is None:
        return _binary(subject, preds, target)
    if kind not in _COUNTED or preds.ndim != 1:
        return None
    classes, average = int(getattr(subject.metric, "num_classes", 0) or 0), getattr(subject.metric, "average", None)
    if kind == "MulticlassAccuracy" and average == "micro" and ignored is None:
        return np.asarray((preds == target).double().numpy())
    if ignored is None and average in ("macro", "micro"):
        return label_metric(_COUNTED[kind], preds.numpy(), target.numpy(), classes, average=average)
    if len(preds) * classes > _MOST_RANKED:
        return None
    return _counted(subject, class_counts(preds, target, classes, ignored).double().numpy())


def _agreement(kind: str, preds: Tensor, target: Tensor) -> Floats:
    same = (preds == target).double().reshape(len(preds), -1)
    if kind == "MultilabelExactMatch":
        return np.asarray(same.min(1).values.numpy())
    return np.asarray((1 - same.mean(1) if kind == "MultilabelHammingDistance" else same.mean(1)).numpy())


def _binary(subject: Subject, preds: Tensor, target: Tensor) -> ItemMetric:
    p, t = preds.reshape(len(preds), -1) > 0, target.reshape(len(target), -1) > 0
    table = torch.stack([(part).double().sum(1) for part in (p & t, p & ~t, ~p & t, ~p & ~t)], dim=1).numpy()
    kind = type(subject.metric).__name__

    def value_of(sums: Floats) -> Floats:
        hits, false, missed, rest = sums.T
        top, bottom = {
            "BinaryF1Score": (2 * hits, 2 * hits + false + missed),
            "BinaryPrecision": (hits, hits + false),
            "BinaryRecall": (hits, hits + missed),
            "BinarySpecificity": (rest, rest + false),
        }[kind]
        return np.asarray(np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0))

    return additive_metric(subject.name, table, value_of)


def _of_probabilities(subject: Subject) -> Form | None:
    """AUROC, average precision and calibration error."""
    metric: Any = subject.metric
    kind, probs, target = type(subject.metric).__name__, subject.preds, subject.target
    if getattr(subject.metric, "ignore_index", None) is not None or not isinstance(probs, Tensor):
        return None
    if kind in ("ExactBinaryAUROC", "BinaryAUROC") and probs.ndim == 1:
        return mean_auroc(subject.name, probs[:, None].numpy(), (target == 1)[:, None].numpy())
    if kind in ("PresentClassAUROC", "MulticlassAUROC") and getattr(subject.metric, "average", "") == "macro":
        return mean_auroc(subject.name, probs.numpy(), target.numpy())
    if kind == "PresentLabelAUROC":
        return mean_auroc(subject.name, probs.numpy(), (target == 1).numpy())
    if kind == "BinaryAveragePrecision" and probs.ndim == 1:
        return mean_average_precision(subject.name, probs[:, None].double().numpy(), (target == 1)[:, None].numpy())
    if kind in ("MultilabelAveragePrecision", "PresentLabelPrecision") and metric.average == "macro":
        return mean_average_precision(subject.name, probs.double().numpy(), (target == 1).numpy())
    if kind in ("MulticlassAveragePrecision", "PresentClassPrecision") and metric.average == "macro":
        truth = (target[:, None] == torch.arange(probs.shape[1])).numpy()
        return mean_average_precision(subject.name, probs.double().numpy(), truth)
    if kind == "BinaryCalibrationError" and metric.norm == "l1" and probs.ndim == 1:
        return binary_calibration(subject.name, probs.double().numpy(), target.numpy(), metric.n_bins)
    if kind == "MulticlassCalibrationError":
        return calibration_error(probs, target.numpy(), bins=metric.n_bins, norm=metric.norm, name=subject.name)
    return None


def _of_scores(subject: Subject) -> Form | None:
    """Metrics that say themselves what each item scores."""
    scores = getattr(subject.metric, "item_scores", None)
    if scores is None or (isinstance(subject.preds, list) and isinstance(subject.preds[0], Tensor)):
        return None
    preds, target = subject.preds, subject.target
    if isinstance(preds, list) or not isinstance(target, Tensor):
        return _numbers(scores(preds, list(target) if isinstance(preds, list) else target))
    return np.concatenate([_numbers(scores(preds[part], target[part])) for part in pieces(preds)])


def _numbers(scores: Tensor) -> Floats:
    return np.asarray(scores.double().cpu().numpy())


def _of_regression(subject: Subject) -> Form | None:
    """Errors as item scores; R2 and correlations as functions of weighted moments."""
    preds, target = subject.preds, subject.target
    if not (isinstance(preds, Tensor) and isinstance(target, Tensor) and preds.shape == target.shape):
        return None
    from fusion_eval.forms.moment import regression_form

    x, y = (value.double().reshape(len(value), -1).numpy() for value in (preds, target))
    return regression_form(subject.metric, subject.name, x, y)


def _of_queries(subject: Subject) -> Form | None:
    """Retrieval: the scores of the queries, in their order."""
    from torchmetrics.retrieval.base import RetrievalMetric

    metric = subject.metric
    if not isinstance(metric, RetrievalMetric) or metric.aggregation != "mean":
        return None
    each = metric.clone()
    each.aggregation = lambda values, dim=None: values
    feed_of(subject.task)(each, subject.preds, subject.target)
    return np.asarray(each.compute().double().cpu().numpy())


def _of_groups(subject: Subject) -> Form | None:
    """Clustering agreement and nominal association, from the table of label pairs."""
    preds, target = subject.preds, subject.target
    if not (isinstance(preds, Tensor) and isinstance(target, Tensor)) or preds.is_floating_point():
        return None
    from fusion_eval.forms.contingency import contingency_form

    return contingency_form(subject.metric, subject.name, preds.numpy(), target.numpy())


def _of_boxes(subject: Subject) -> Form | None:
    """COCO's average precision and recall by images."""
    if type(subject.metric).__name__ != "CocoPrecision" or not isinstance(subject.preds, list):
        return None
    return coco_form(subject.name, subject.preds, subject.target)


def _of_features(subject: Subject) -> Form | None:
    """Distances between sets of images, from their features."""
    features = subject.columns.get(FEATURES + subject.battery_name)
    if not isinstance(features, Tensor):
        return None
    from fusion_eval.forms.distance import distance_form

    return distance_form(subject.metric, subject.name, subject.value, features.numpy())


def _of_states(subject: Subject) -> Form | None:
    """Sums over items that dense tasks keep."""
    states = subject.columns.get(STATES + subject.battery_name)
    if not isinstance(states, Tensor) or subject.name != subject.battery_name:
        return None
    return of_states(subject, states.double().numpy())


def of_states(subject: Subject, states: Floats) -> Form:
    """A metric whose states are sums over items: means and ratios directly, others through the metric's own formula."""
    if states.shape[1] == 2:
        top, bottom = states.T
        ratio = top.sum() / bottom.sum() if bottom.sum() else math.nan
        if abs(ratio - subject.value) <= _SAME * max(1.0, abs(subject.value)):
            if bool((bottom == bottom[0]).all()):
                return np.asarray(top / bottom)
            return additive_metric(subject.name, states, lambda sums: np.asarray(sums[:, 0] / sums[:, 1]))
    formula = text_formula(subject.metric)
    if formula is not None:
        return additive_metric(subject.name, states, formula, higher_is_better=subject.higher_is_better)
    metric = subject.metric.clone()

    def value_of(sums: Floats) -> Floats:
        values = np.full(len(sums), np.nan)
        for i, row in enumerate(torch.from_numpy(sums)):
            load_states(metric, row)
            values[i] = float(metric.compute())
        return values

    return additive_metric(subject.name, states, value_of, higher_is_better=subject.higher_is_better)


def _of_fed_items(subject: Subject) -> Form | None:
    """Any metric, fed one item at a time: by its states where they are sums, else where it is a mean over items."""
    items = length_of(subject.target)
    if subject.task.update_fn is not None or items > _MOST_FED or subject.name != subject.battery_name:
        return None
    if subject.preds is None or COUNTS in subject.columns:
        return None
    metric, feed = subject.metric.clone(), feed_of(subject.task)
    if is_additive(metric):
        states, reasons = item_states(metric, feed, subject.preds, subject.target, items)
        return None if any(reasons) else of_states(subject, states.numpy())
    return _one_by_one(metric, subject, items)


def _one_by_one(metric: Metric, subject: Subject, items: int) -> Floats | None:
    from fusion_eval.evaluation.columns import part_of

    scores = np.empty(items)
    for i in range(items):
        metric.reset()
        one = slice(i, i + 1)
        try:
            feed_of(subject.task)(metric, part_of(subject.preds, one), part_of(subject.target, one))
            result = metric.compute()
        except (ValueError, RuntimeError, IndexError):  # the metric needs several items, so that it is no mean of them
            return None
        if not isinstance(result, Tensor) or result.numel() != 1:
            return None
        scores[i] = float(result)
    return scores
