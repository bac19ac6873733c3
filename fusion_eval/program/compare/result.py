"""From evaluated runs to the result of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from fusion_eval.errors import EvaluationError, Fault, StatisticsError
from fusion_eval.evaluation.measure import Measured
from fusion_eval.forms.item_form import Form
from fusion_eval.stats.compare import compare_metrics
from fusion_eval.stats.item_metric import ItemMetric, mean_metric
from fusion_eval.stats.ranking import ranks_of
from fusion_eval.stats.result import ComparisonResult
from fusion_eval.stats.scores import Scores
from fusion_eval.stats.settings import SettingsArguments, settings_among, settings_of
from fusion_eval.stats.summary import MethodSummary
from fusion_eval.taskpool.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Run:
    """One evaluated model.

    Args:
        measured: its metrics.
        forms: the metrics by items, where they have such a form.
        clusters: the batches' cluster labels of the items that count, or None.
        ids: the items that count.
    """

    measured: Measured
    forms: Mapping[str, Form | None]
    clusters: Any
    ids: Tensor


Runs = Mapping[str, Sequence[Run]]


def compared(
    runs: Runs,
    chosen: Measurement,
    clusters: Sequence[Any] | None,
    receipt: Mapping[str, Any],
    settings: SettingsArguments,
    seeds: tuple[int, ...],
) -> ComparisonResult:
    """The comparison of evaluated runs; metrics that cannot be tested are in it with their values.

    Raises:
        EvaluationError: no metric has a value for every model.
        StatisticsError: clusters that do not fit, a reference that is no method.
    """
    every = [run for each in runs.values() for run in each]
    names, warnings = _shared_names(runs, every)
    warnings += _notes(runs)
    measured = [_scores(name, runs, seeds) for name in names]
    tested = [scores for scores in measured if scores.has_items or scores.n_runs > 1]
    rest = [scores for scores in measured if not (scores.has_items or scores.n_runs > 1)]
    warnings += [f"{s.metric}: one value per method and no form by items, so it is not tested" for s in rest]
    labels = _labels(clusters, every[0])
    if faults := settings_of(settings).rope_faults(names):
        raise StatisticsError(*faults)
    if tested:
        among = settings_among(settings, [scores.metric for scores in tested])
        found = compare_metrics(tested, clusters=labels, receipt=receipt, **among)
    else:
        found = ComparisonResult((), (), (), settings_of(settings), None, (), receipt)
    return replace(
        found,
        scores=_in_order([*found.scores, *rest], names),
        summaries=(*found.summaries, *(row for scores in rest for row in _untested(scores))),
        warnings=tuple(dict.fromkeys([*found.warnings, *warnings])),
    )


def _shared_names(runs: Runs, every: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The metrics that every model has, and a warning for each other one."""
    names = list(dict.fromkeys(name for run in every for name in run.measured.values))
    kept, warnings = [], []
    for name in names:
        lacking = [who for who, run in _labelled(runs) if name not in run.measured.values]
        if lacking:
            warnings.append(f"{name}: left out, since it has no value for {', '.join(lacking[:5])}")
        else:
            kept.append(name)
    if not kept:
        raise EvaluationError(Fault("compare", "no metric has a value for every model", do="; ".join(warnings)))
    return kept, warnings


def _labelled(runs: Runs) -> list[tuple[str, Run]]:
    return [
        (name if len(each) == 1 else f"{name} run {i}", run)
        for name, each in runs.items()
        for i, run in enumerate(each)
    ]


def _notes(runs: Runs) -> list[str]:
    """Every note once, with the models that it is about unless it is about all."""
    about: dict[str, list[str]] = {}
    labelled = _labelled(runs)
    for who, run in labelled:
        for note in run.measured.notes:
            about.setdefault(note, []).append(who)
    return [note if len(who) == len(labelled) else f"{note} ({', '.join(who[:5])})" for note, who in about.items()]


def _scores(name: str, runs: Runs, seeds: tuple[int, ...]) -> Scores:
    """The scores of one metric, in the best form that all runs share."""
    forms = [[run.forms.get(name) for run in each] for each in runs.values()]
    directions = {run.measured.directions[name] for each in runs.values() for run in each}
    better = False not in directions
    flat = [form for each in forms for form in each]
    sizes = {form.n_items if isinstance(form, ItemMetric) else len(form) for form in flat if form is not None}
    values = np.array([[_value(name, run) for run in each] for each in runs.values()])
    methods = tuple(runs)
    if any(form is None for form in flat) or len(sizes) != 1:
        return Scores(name, methods, values, None, None, better, seeds)
    n_items = sizes.pop()
    if all(isinstance(form, np.ndarray) for form in flat):
        items = np.array(forms, dtype=np.float64)
        return Scores(name, methods, items.mean(axis=2), items, None, better, seeds, n_items)
    functions = tuple(tuple(_function(name, form, better) for form in each) for each in forms)
    return Scores(name, methods, values, None, functions, better, seeds, n_items)


def _value(name: str, run: Run) -> float:
    """The reported value; under weights the form's, which is the weighted one."""
    form = run.forms.get(name)
    return form.value if isinstance(form, ItemMetric) else run.measured.values[name]


def _function(name: str, form: Form | None, better: bool) -> ItemMetric:
    assert form is not None
    return form if isinstance(form, ItemMetric) else mean_metric(name, form, higher_is_better=better)


def _labels(clusters: Sequence[Any] | None, run: Run) -> Any:
    """The given cluster labels, else the batches'; of the items that count."""
    if clusters is None:
        return run.clusters.tolist() if isinstance(run.clusters, Tensor) else run.clusters
    given = list(clusters)
    ids = run.ids.tolist()
    return [given[i] for i in ids] if ids and len(given) > max(ids) and len(given) != len(ids) else given


def _in_order(scores: Sequence[Scores], names: Sequence[str]) -> tuple[Scores, ...]:
    return tuple(sorted(scores, key=lambda each: names.index(each.metric)))


def _untested(scores: Scores) -> list[MethodSummary]:
    means = scores.values.mean(axis=1)
    ranks = ranks_of(means, higher_is_better=scores.higher_is_better)
    return [
        MethodSummary(
            method,
            scores.metric,
            float(means[m]),
            *(math.nan,) * 3,
            interval="none: no form by items",
            item_ci_low=math.nan,
            item_ci_high=math.nan,
            rank=float(ranks[m]),
            notes=("one run without a form by items: no interval",),
        )
        for m, method in enumerate(scores.methods)
    ]
