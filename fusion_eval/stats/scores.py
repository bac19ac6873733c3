"""What methods scored on one metric: values per run and, where they exist, per-item scores or item-weight functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike

from fusion_eval.errors import Fault, FusionEvalError, StatisticsError, listed
from fusion_eval.stats.arrays import Floats, as_floats
from fusion_eval.stats.item_metric import ItemMetric

MetricRuns: TypeAlias = ItemMetric | Sequence[ItemMetric]
Seeds: TypeAlias = Sequence[int] | None


@final
@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of several methods on one metric; make them with `from_items`, `from_metrics` or `from_values`.

    Args:
        metric: the metric's name.
        methods: the methods' names.
        values: the metric of every run, shape (methods, runs).
        items: per-item scores whose mean is the metric, shape (methods, runs, items), or None.
        functions: the metric as a function of item weights, per method and run, or None.
        higher_is_better: the metric's direction.
        seeds: the name of every run.
        n_items: items that every method was scored on; 0 where only the runs' values are known.
    """

    metric: str
    methods: tuple[str, ...]
    values: Floats
    items: Floats | None = None
    functions: tuple[tuple[ItemMetric, ...], ...] | None = None
    higher_is_better: bool = True
    seeds: tuple[int, ...] = ()
    n_items: int = 0

    @property
    def n_runs(self) -> int:
        """Runs (seeds) of every method."""
        return int(self.values.shape[1])

    @property
    def has_items(self) -> bool:
        """Whether the items can be resampled, not only the runs."""
        return self.items is not None or self.functions is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the metrics themselves warn about, such as absent classes."""
        every = (note for runs in self.functions or () for metric in runs for note in metric.notes)
        return tuple(dict.fromkeys(every))

    def without_functions(self) -> Scores:
        """The same scores as plain arrays."""
        return replace(self, functions=None)

    @classmethod
    def from_items(
        cls, metric: str, scores: Mapping[str, ArrayLike], *, higher_is_better: bool = True, seeds: Seeds = None
    ) -> Scores:
        """Per-item scores: one dimension for one run, (runs, items) for several."""
        _check(metric, scores, higher_is_better)
        arrays = _gathered(metric, scores, _runs_of_items)
        _check_equal(metric, {name: array.shape[1] for name, array in arrays.items()}, "items", _SAME_ITEMS)
        _check_equal(metric, {name: array.shape[0] for name, array in arrays.items()}, "runs", _SAME_RUNS)
        items = np.stack(list(arrays.values()))
        return cls(
            metric=metric,
            methods=tuple(arrays),
            values=items.mean(axis=2),
            items=items,
            higher_is_better=higher_is_better,
            seeds=_seeds(metric, seeds, items.shape[1]),
            n_items=items.shape[2],
        )

    @classmethod
    def from_values(
        cls, metric: str, scores: Mapping[str, ArrayLike], *, higher_is_better: bool = True, seeds: Seeds = None
    ) -> Scores:
        """One value per run of every method, where no per-item scores exist."""
        _check(metric, scores, higher_is_better)
        arrays = _gathered(metric, scores, _run_values)
        _check_equal(metric, {name: len(array) for name, array in arrays.items()}, "runs", _SAME_RUNS)
        values = np.stack(list(arrays.values()))
        return cls(metric, tuple(arrays), values, None, None, higher_is_better, _seeds(metric, seeds, values.shape[1]))

    @classmethod
    def from_metrics(cls, metric: str, scores: Mapping[str, MetricRuns], *, seeds: Seeds = None) -> Scores:
        """Metrics that are no mean (F1, AUROC, mIoU, ECE), given as functions of item weights, one per run."""
        _check(metric, scores)
        runs = {name: (value,) if isinstance(value, ItemMetric) else tuple(value) for name, value in scores.items()}
        _check_equal(metric, {name: len(value) for name, value in runs.items()}, "runs", _SAME_RUNS)
        counts = {f"{name}, run {i}": run.n_items for name, value in runs.items() for i, run in enumerate(value)}
        _check_equal(metric, counts, "items", _SAME_ITEMS)
        functions = tuple(runs.values())
        values = np.array([[run.value for run in value] for value in functions])
        return cls(
            metric=metric,
            methods=tuple(runs),
            values=values,
            functions=functions,
            higher_is_better=functions[0][0].higher_is_better,
            seeds=_seeds(metric, seeds, values.shape[1]),
            n_items=functions[0][0].n_items,
        )


_SAME_ITEMS = "Score every method on the same items, in the same order: the comparison is paired."
_SAME_RUNS = "Give every method the same seeds, or compare one run of each."


def _seeds(metric: str, seeds: Seeds, runs: int) -> tuple[int, ...]:
    if seeds is None:
        return tuple(range(runs))
    if not all(isinstance(seed, Integral) for seed in seeds):
        found = f"seeds {listed([repr(seed) for seed in seeds])}"
        raise StatisticsError(Fault(metric, found, "whole numbers, one per run"))
    if len(seeds) != runs or len(set(seeds)) < runs:
        found = f"seeds {listed([str(seed) for seed in seeds])}"
        raise StatisticsError(Fault(metric, found, f"{runs} different seeds, one per run"))
    return tuple(int(seed) for seed in seeds)


def _check(metric: str, given: object, higher_is_better: object = True) -> None:
    faults = []
    if not isinstance(higher_is_better, bool | np.bool_):
        faults.append(Fault("higher_is_better", repr(higher_is_better), "true or false"))
    names = list(given.keys()) if isinstance(given, Mapping) or hasattr(given, "keys") else None
    if names is None:
        raise StatisticsError(Fault(str(metric), f"a {type(given).__name__}", "scores by method name"))
    if not isinstance(metric, str) or not metric:
        faults.append(Fault("metric_name", repr(metric), "a name"))
    if len(names) < 2:
        faults.append(Fault(str(metric), f"{len(names)} methods", "at least two methods to compare"))
    wrong = [repr(name) for name in names if not isinstance(name, str) or not name.strip()]
    if wrong:
        faults.append(Fault(str(metric), f"method names {listed(wrong)}", "non-empty text", "Use str(name)."))
    if faults:
        raise StatisticsError(*faults)


def _gathered(
    metric: str, scores: Mapping[str, ArrayLike], read: Callable[[str, str, ArrayLike], Floats]
) -> dict[str, Floats]:
    """Every method's array, or all faults in one error."""
    arrays: dict[str, Floats] = {}
    faults: list[Fault] = []
    for name, values in scores.items():
        try:
            arrays[name] = read(metric, name, values)
        except FusionEvalError as error:
            faults.extend(error.faults)
    if faults:
        raise StatisticsError(*faults)
    return arrays


def _runs_of_items(metric: str, name: str, values: ArrayLike) -> Floats:
    where = f"{metric}, method '{name}'"
    array = as_floats(where, values)
    if array.ndim == 1:
        return array[np.newaxis]
    if array.ndim != 2:
        raise StatisticsError(Fault(where, f"an array of shape {array.shape}", "(items,) or (runs, items)"))
    if array.shape[1] == 1 and array.shape[0] > 1:
        do = (
            f"Pass one dimension for {array.shape[0]} items of one run, or Scores.from_values for values of whole runs."
        )
        raise StatisticsError(
            Fault(where, f"shape {array.shape}: {array.shape[0]} runs of one item", "several items", do)
        )
    return array


def _run_values(metric: str, name: str, values: ArrayLike) -> Floats:
    where = f"{metric}, method '{name}'"
    array = as_floats(where, values)
    if array.ndim > 1:
        raise StatisticsError(Fault(where, f"an array of shape {array.shape}", "one value per run"))
    return np.atleast_1d(array)


def _check_equal(metric: str, counts: Mapping[str, int], noun: str, do: str) -> None:
    if len(set(counts.values())) > 1:
        first: dict[int, str] = {}
        for name, count in counts.items():
            first.setdefault(count, name)
        found = ", ".join(f"'{name}' has {count}" for count, name in first.items())
        raise StatisticsError(
            Fault(metric, f"unequal numbers of {noun}: {found}", f"as many {noun} in every method", do)
        )
    if 0 in counts.values():
        raise StatisticsError(Fault(metric, f"no {noun}", f"at least one of the {noun}"))
