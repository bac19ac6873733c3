"""Sufficient statistics per item, in place of outputs that are too large to keep.

A torchmetrics metric whose states are all summed over processes is a function of sums over items: one row of states per
item is enough for its value, and for its value under any weights of the items. Metrics that count hits and misses per
class (accuracy, F1, precision, recall, IoU) share one row of counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusion_eval.errors import DataError, EvaluationError, Fault, listed
from fusion_eval.evaluation.columns import part_of
from fusion_eval.task.battery import MetricUnavailable

if TYPE_CHECKING:
    from torchmetrics import Metric

STATES = "states:"
"""Prefix of the columns of per-item states, followed by the metric's name."""

REASONS = "reasons:"
"""Prefix of the columns that say why an item has no states."""

COUNTS = "counts"
"""The column of hits, false positives and misses per class, (items, 3C)."""

Feed = Callable[["Metric", Any, Any], None]


def is_additive(metric: Metric) -> bool:
    """Whether the metric's states are sums over items (or constants)."""
    from torchmetrics.utilities.data import dim_zero_mean, dim_zero_sum

    return bool(metric._defaults) and all(
        isinstance(default, Tensor) and metric._reductions[name] in (dim_zero_sum, dim_zero_mean)
        for name, default in metric._defaults.items()
    )


def counts_classes(metric: Metric) -> bool:
    """Whether the metric is a function of hits, false positives and misses per class."""
    from torchmetrics.classification import MulticlassStatScores

    return (
        isinstance(metric, MulticlassStatScores)
        and metric.multidim_average == "global"
        and getattr(metric, "top_k", 1) == 1
    )


def state_row(metric: Metric) -> Tensor:
    """The metric's states as one float64 vector."""
    return torch.cat([getattr(metric, name).detach().double().reshape(-1).cpu() for name in metric._defaults])


def item_states(metric: Metric, feed: Feed, preds: Any, target: Any, items: int) -> tuple[Tensor, list[str]]:
    """The states (items, m) that each item alone leaves in the metric, and why an item has none (NaN), or ""."""
    rows, reasons = [], []
    for i in range(items):
        metric.reset()
        one, reason = slice(i, i + 1), ""
        try:
            feed(metric, _as_batch(part_of(preds, one)), _as_batch(part_of(target, one)))
        except MetricUnavailable as error:
            reason = str(error)
        row = state_row(metric)
        rows.append(torch.full_like(row, torch.nan) if reason else row)
        reasons.append(reason)
    metric.reset()
    return torch.stack(rows), reasons


def _as_batch(value: Any) -> Any:
    """A list with one tensor as a batch of one; anything else as it is."""
    return value[0].unsqueeze(0) if isinstance(value, list) and value and isinstance(value[0], Tensor) else value


def load_states(metric: Metric, sums: Tensor) -> None:
    """Put summed states (m,) into the metric; constants keep their values."""
    from torchmetrics.utilities.data import dim_zero_mean

    start = 0
    for name, default in metric._defaults.items():
        assert isinstance(default, Tensor)
        part = sums[start : start + default.numel()].reshape(default.shape)
        start += default.numel()
        if metric._reductions[name] is not dim_zero_mean:
            setattr(metric, name, part.to(default.dtype))
    _mark_updated(metric)


def load_counts(metric: Any, sums: Tensor) -> None:
    """Put summed counts (3C,) into a metric that counts per class."""
    hits, false, missed = sums.long().reshape(3, -1)
    rest = (hits + missed).sum() - hits - false - missed
    for name, part in zip(("tp", "fp", "tn", "fn"), (hits, false, rest, missed), strict=True):
        setattr(metric, name, part.sum(0, keepdim=True) if len(metric._defaults[name]) == 1 else part)
    _mark_updated(metric)


def _mark_updated(metric: Metric) -> None:
    """torchmetrics warns where `compute` comes without an `update`; the loaded states stand for one."""
    metric._update_count, metric._computed = 1, None


def label_totals(metric: Metric, preds: Any, target: Any) -> Tensor | None:
    """Hits, false positives and misses of every class (3C,) where the metric counts one label per item, else None.

    torchmetrics counts them in a table of C x C, which is large for many classes.
    """
    if not counts_classes(metric) or not (isinstance(preds, Tensor) and isinstance(target, Tensor)):
        return None
    classes, ignored = int(metric.num_classes), metric.ignore_index  # type: ignore[arg-type]
    if preds.ndim != 1 or preds.shape != target.shape or preds.is_floating_point() or target.is_floating_point():
        return None
    p, t = (preds, target) if ignored is None else (preds[target != ignored], target[target != ignored])
    if not len(p) or int(min(p.min(), t.min())) < 0 or int(max(p.max(), t.max())) >= classes:
        return None
    right = p == t
    parts = (t[right], p[~right], t[~right])
    return torch.cat([torch.bincount(part.long(), minlength=classes) for part in parts])


def class_counts(preds: Tensor, target: Tensor, classes: int, ignore_index: int | None) -> Tensor:
    """Hits, false positives and misses of every class per item, (items, 3C) int32.

    Args:
        preds: class indices (items, ...).
        target: class indices of the same shape.
        classes: C.
        ignore_index: entries with this target do not count.
    """
    items = len(preds)
    p, t = preds.reshape(items, -1).long(), target.reshape(items, -1).long()
    counted = torch.ones_like(t, dtype=torch.bool) if ignore_index is None else t != ignore_index
    item = torch.arange(items, device=p.device)[:, None].expand_as(p)
    right = counted & (p == t)
    wrong = counted & (p != t)
    parts = [_tally(item, t, right, classes), _tally(item, p, wrong, classes), _tally(item, t, wrong, classes)]
    return torch.cat(parts, dim=1).int().cpu()


def _tally(item: Tensor, label: Tensor, chosen: Tensor, classes: int) -> Tensor:
    items = len(item)
    codes = item[chosen] * classes + label[chosen]
    return torch.bincount(codes, minlength=items * classes).reshape(items, classes)


def shared_classes(battery: Mapping[str, Metric]) -> tuple[int, int | None] | None:
    """(classes, ignored index) where every metric counts per class with the same ones, else None."""
    kinds: set[Any] = {(m.num_classes, m.ignore_index) if counts_classes(m) else None for m in battery.values()}
    shared: tuple[int, int | None] | None = kinds.pop() if len(kinds) == 1 else None
    return shared


def check_labels(where: str, name: str, labels: Tensor, ids: Tensor, classes: int, ignore_index: int | None) -> None:
    """Refuse class indices outside 0..C-1.

    Raises:
        DataError: targets outside; EvaluationError: predictions outside.
    """
    if labels.is_floating_point():
        return
    outside = (labels < 0) | (labels >= classes)
    if ignore_index is not None and name == "target":
        outside &= labels != ignore_index
    if not bool(outside.any()):
        return
    bad = outside.reshape(len(labels), -1).any(1).cpu()
    values = sorted(set(labels[outside].cpu().tolist()))
    kind = DataError if name == "target" else EvaluationError
    hint = "Use the label mapping of this task, or set ignore_index for void entries."
    raise kind(
        Fault(
            where,
            f"{name}s outside the {classes} classes: {listed(values)} (items {listed(ids[: len(bad)][bad].tolist())})",
            f"0 to {classes - 1}",
            hint if name == "target" else "Set num_classes to the number of the model's classes.",
        )
    )
