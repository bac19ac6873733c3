"""Arrays of scores: checked, finite, float64, with cluster labels as codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusion_eval.errors import Fault, StatisticsError, listed

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_LARGEST = 1e150


def as_floats(where: str, values: ArrayLike) -> Floats:
    """The values as a finite, non-empty float64 array.

    Raises:
        StatisticsError: not numbers, empty, NaN or infinite (with how many and where the first one is).
    """
    array = _numbers(where, values)
    if array.size == 0:
        raise StatisticsError(Fault(where, "no scores", "at least one score"))
    if np.abs(array).max(initial=0.0, where=np.isfinite(array)) > _LARGEST:
        found = f"scores as large as {np.abs(array).max():.3g}"
        raise StatisticsError(
            Fault(where, found, f"at most {_LARGEST:g}, whose squares are finite", "Use another unit.")
        )
    bad = ~np.isfinite(array)
    if bad.any():
        first = [int(i) for i in np.argwhere(bad)[0]]
        raise StatisticsError(
            Fault(
                where,
                f"{int(bad.sum())} of {array.size} scores are NaN or infinite, the first at index {first}",
                "finite numbers",
                "Score failed items with a number (0 for a wrong answer), or drop them from every method.",
            )
        )
    return array


def _numbers(where: str, values: ArrayLike) -> Floats:
    try:
        array = np.asarray(_detached(values))
        if array.dtype.kind not in "biuf":
            raise TypeError(f"the element type is {array.dtype}")
        hidden = int(np.ma.getmaskarray(values).sum()) if np.ma.isMaskedArray(values) else 0
        if hidden:
            raise ValueError(f"{hidden} of {array.size} entries are masked")
        return array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        do = "Pass one number per item."
        raise StatisticsError(Fault(where, f"not an array of numbers ({error})", "numbers", do)) from error


def _detached(values: Any) -> Any:
    """A tensor of torch as one that numpy can read: on the CPU, without gradient, in double precision."""
    return values.detach().cpu().double() if type(values).__module__.partition(".")[0] == "torch" else values


def as_items(where: str, values: ArrayLike) -> Floats:
    """One score per item, shape (items,)."""
    array = as_floats(where, values)
    if array.ndim != 1:
        raise StatisticsError(Fault(where, f"an array of shape {array.shape}", "one dimension, one score per item"))
    return array


def as_clusters(clusters: Sequence[Any] | NDArray[Any] | None, n_items: int) -> Ints | None:
    """Cluster codes 0..C-1 per item in the order of the sorted labels; None stays None.

    Raises:
        StatisticsError: the number of labels is not the number of items, a label is missing, or there is one cluster
            only.
    """
    if clusters is None:
        return None
    labels = list(np.asarray(clusters).tolist()) if hasattr(clusters, "__array__") else list(clusters)
    nested = next((label for label in labels if isinstance(label, list | dict | set | np.ndarray)), None)
    if nested is not None:
        raise StatisticsError(Fault("clusters", f"the label {nested!r}", "one text or number per item"))
    if len(labels) != n_items:
        raise StatisticsError(
            Fault("clusters", f"{len(labels)} labels for {n_items} items", "one label per item, in the items' order")
        )
    missing = [i for i, label in enumerate(labels) if label is None or label != label]
    if missing:
        found = f"no label for item {listed([str(i) for i in missing])}"
        raise StatisticsError(Fault("clusters", found, "a label for every item"))
    codes = _codes(labels)
    if codes.max() == 0:
        do = "Leave clusters out when the items are independent."
        raise StatisticsError(Fault("clusters", f"all {n_items} items share one label", "at least two clusters", do))
    return codes


def _codes(labels: list[Any]) -> Ints:
    try:
        ordered = sorted(set(labels))
    except TypeError:
        ordered = list(dict.fromkeys(labels))
    position = {label: i for i, label in enumerate(ordered)}
    return np.array([position[label] for label in labels], dtype=np.int64)


def is_binary(scores: Floats) -> bool:
    """Whether every score is 0 or 1."""
    return bool(((scores == 0) | (scores == 1)).all())


def cluster_totals(scores: Floats, codes: Ints | None) -> tuple[Floats, Floats]:
    """Sum of the scores and number of items of every cluster; items are their own clusters when codes is None."""
    if codes is None:
        return scores, np.ones(len(scores))
    return np.asarray(np.bincount(codes, weights=scores)), np.bincount(codes).astype(np.float64)
