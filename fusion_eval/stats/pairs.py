"""One pair of methods on one metric: which test applies, its outcome, and what the items say."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from fusion_eval.errors import Fault, StatisticsError
from fusion_eval.stats.arrays import Floats, Ints
from fusion_eval.stats.bootstrap import (
    acceleration_of,
    bca_interval,
    bootstrap_p,
    jackknife_means,
    jackknife_metric,
    percentile_interval,
)
from fusion_eval.stats.crossed import crossed_t, variance_of_draws, variance_of_runs
from fusion_eval.stats.effects import cohen_d_paired, is_constant, tost_p
from fusion_eval.stats.outcome import CLUSTERS, CROSSED, ITEMS, SEEDS, Outcome
from fusion_eval.stats.paired import AUTO, UNPAIRED, run_test
from fusion_eval.stats.power import smallest_p
from fusion_eval.stats.resample import resampled_means, resampled_metrics, resamples_for, reweighted_runs
from fusion_eval.stats.scores import Scores
from fusion_eval.stats.settings import Settings

_OVER_ITEMS = ("permutation", "mcnemar", "mcnemar_midp", "bootstrap")
_NAN = (math.nan, math.nan)


@final
@dataclass(frozen=True, slots=True)
class ItemPart:
    """The bootstrap of a mean difference over items, runs averaged: what it says about these checkpoints."""

    diff: float
    low: float
    high: float
    p: float
    floor: float


@final
@dataclass(frozen=True, slots=True)
class Pair:
    """The uncorrected comparison of methods a and b, by position in `scores`."""

    scores: Scores
    a: int
    b: int
    outcome: Outcome
    item: ItemPart | None
    crossed: tuple[float, float]
    equivalence_p: float


@final
@dataclass(frozen=True, slots=True)
class Evidence:
    """A metric's scores with everything that its pairs share: clusters, settings and resamples (B, methods, runs)."""

    scores: Scores
    codes: Ints | None
    settings: Settings
    draws: Floats | None

    @property
    def n_units(self) -> int:
        """Items, or clusters where they are given."""
        return self.scores.n_items if self.codes is None else int(self.codes.max()) + 1

    @property
    def item_unit(self) -> str:
        """What the items count as."""
        return ITEMS if self.codes is None else CLUSTERS


def evidence_of(scores: Scores, codes: Ints | None, settings: Settings) -> Evidence:
    """The scores with their resamples: one set of resampled items for all methods, so that pairs stay paired."""
    shape = (len(scores.methods), scores.n_runs)
    draws = None
    if scores.items is not None:
        columns = scores.items.reshape(-1, scores.n_items).T
        draws = resampled_means(columns, codes, settings.resamples, settings.seed)
    elif scores.functions is not None:
        metrics = [run for runs in scores.functions for run in runs]
        draws = resampled_metrics(metrics, codes, resamples_for(scores.n_items, settings.resamples), settings.seed)
    return Evidence(scores, codes, settings, None if draws is None else draws.reshape(len(draws), *shape))


def pairs_of(evidence: Evidence) -> list[Pair]:
    """Every pair that the settings ask for: all, or each method against the reference."""
    methods, reference = evidence.scores.methods, evidence.settings.reference
    if reference is None:
        wanted = [(a, b) for a in range(len(methods)) for b in range(a + 1, len(methods))]
    else:
        base = methods.index(reference)
        wanted = [(a, base) for a in range(len(methods)) if a != base]
    return [_pair(evidence, a, b) for a, b in wanted]


def _pair(evidence: Evidence, a: int, b: int) -> Pair:
    scores, settings = evidence.scores, evidence.settings
    unit = unit_of(evidence, a, b)
    outcome = _outcome(evidence, a, b, unit)
    if scores.n_runs > 1 and unit == ITEMS and is_deterministic(scores, a, b):
        note = f"identical over all {scores.n_runs} runs: compared by items, which says nothing about new seeds"
        outcome = replace(outcome, notes=(*outcome.notes, note))
    crossed = _crossed_interval(evidence, a, b) if scores.n_runs > 1 and evidence.draws is not None else _NAN
    rope = settings.rope_of(scores.metric)
    mean = float((scores.values[a] - scores.values[b]).mean())
    equivalence = math.nan if rope is None else tost_p(mean, outcome.stderr, outcome.df, rope)
    item = None if evidence.draws is None else _item_part(evidence, a, b)
    return Pair(scores, a, b, outcome, item, crossed, equivalence)


def is_deterministic(scores: Scores, a: int, b: int) -> bool:
    """Whether neither method changes over its runs, as most merges do not: seeds then carry no information."""
    if scores.items is not None:
        return all(bool((scores.items[m] == scores.items[m, :1]).all()) for m in (a, b))
    return all(bool((scores.values[m] == scores.values[m, 0]).all()) for m in (a, b))


def unit_of(evidence: Evidence, a: int, b: int) -> str:
    """What the pair's test counts: items (or clusters), seeds, or both crossed."""
    scores, settings = evidence.scores, evidence.settings
    if not scores.has_items:
        return SEEDS
    if scores.n_runs == 1 or is_deterministic(scores, a, b):
        return ITEMS
    if settings.unit != "auto":
        return ITEMS if settings.unit == "items" else SEEDS
    if settings.test == AUTO:
        return CROSSED if evidence.n_units > 1 else SEEDS
    return ITEMS if settings.test in _OVER_ITEMS else SEEDS


def _outcome(evidence: Evidence, a: int, b: int, unit: str) -> Outcome:
    scores, settings = evidence.scores, evidence.settings
    test = "ttest_rel" if settings.test == AUTO else settings.test
    if unit == SEEDS and scores.n_runs == 1:
        note = "one value per method and no per-item scores: nothing to test"
        return Outcome("none", SEEDS, math.nan, math.nan, math.nan, math.nan, math.nan, n_units=1, notes=(note,))
    if unit == SEEDS:
        if test == "bootstrap":
            do = "Use test='ttest_rel' for values of whole runs."
            raise StatisticsError(
                Fault(f"{scores.metric}, test='bootstrap'", "no per-item scores", "items to resample", do)
            )
        return run_test(test, scores.values[a], scores.values[b], SEEDS, settings.level)
    if unit == CROSSED:
        return _crossed(evidence, a, b)
    if scores.items is None or test == "bootstrap":
        found = _bootstrap(evidence, a, b)
        if settings.test in (AUTO, "bootstrap"):
            return found
        note = f"{scores.metric} is no mean over items: tested by bootstrap instead of {settings.test}"
        return replace(found, notes=(*found.notes, note))
    first, second = scores.items[a].mean(axis=0), scores.items[b].mean(axis=0)
    found = run_test(test, first, second, ITEMS, settings.level, evidence.codes)
    if test not in UNPAIRED:
        return found
    note = f"{test} ignores that both methods were scored on the same items; test='ttest_rel' finds smaller differences"
    return replace(found, notes=(*found.notes, note))


def _crossed(evidence: Evidence, a: int, b: int) -> Outcome:
    scores, level = evidence.scores, evidence.settings.level
    values = scores.values[a] - scores.values[b]
    if scores.items is not None:
        differences = scores.items[a] - scores.items[b]
        effect = cohen_d_paired(scores.items[a].mean(axis=0), scores.items[b].mean(axis=0))
        return crossed_t(float(values.mean()), variance_of_runs(differences, evidence.codes), effect, level)
    assert evidence.draws is not None
    draws = evidence.draws[:, a] - evidence.draws[:, b]
    effect = cohen_d_paired(scores.values[a], scores.values[b])
    return crossed_t(float(values.mean()), variance_of_draws(values, draws, evidence.n_units), effect, level)


def _difference_draws(evidence: Evidence, a: int, b: int) -> Floats:
    assert evidence.draws is not None
    return np.asarray(evidence.draws[:, a].mean(axis=1) - evidence.draws[:, b].mean(axis=1))


def _bootstrap(evidence: Evidence, a: int, b: int) -> Outcome:
    part = _item_part(evidence, a, b)
    draws = _difference_draws(evidence, a, b)
    scores, units = evidence.scores, evidence.n_units
    effect = math.nan
    if scores.items is not None:
        effect = cohen_d_paired(scores.items[a].mean(axis=0), scores.items[b].mean(axis=0))
    stderr = float(np.nanstd(draws, ddof=1))
    known = int((~np.isnan(draws)).sum())
    notes = (
        ()
        if known == len(draws)
        else (f"{len(draws) - known} of {len(draws)} resamples had no value and were left out",)
    )
    return Outcome(
        "bootstrap",
        evidence.item_unit,
        part.p,
        part.low,
        part.high,
        stderr,
        units - 1.0,
        part.floor,
        units,
        effect,
        notes,
    )


def _item_part(evidence: Evidence, a: int, b: int) -> ItemPart:
    scores, settings = evidence.scores, evidence.settings
    draws = _difference_draws(evidence, a, b)
    mean = float((scores.values[a] - scores.values[b]).mean())
    if is_constant(draws[~np.isnan(draws)], scores.values):
        return _degenerate(evidence, a, b, mean)
    floor = smallest_p("bootstrap", len(draws))
    if settings.interval == "percentile":
        low, high = percentile_interval(draws, settings.level)
    else:
        low, high = bca_interval(draws, mean, acceleration_of(_jackknife(evidence, a, b)), settings.level)
    return ItemPart(mean, low, high, bootstrap_p(draws, mean), floor)


def _degenerate(evidence: Evidence, a: int, b: int, mean: float) -> ItemPart:
    """Differences that no resample can vary: the sign test speaks for them."""
    items = evidence.scores.items
    if items is None:
        p = 1.0 if abs(mean) < 1e-12 else smallest_p("permutation", evidence.n_units)
        return ItemPart(mean, *_NAN, p, p)
    found = run_test(
        "ttest_rel", items[a].mean(axis=0), items[b].mean(axis=0), ITEMS, evidence.settings.level, evidence.codes
    )
    return ItemPart(mean, found.low, found.high, found.p, found.floor)


def _jackknife(evidence: Evidence, a: int, b: int) -> Floats:
    scores, codes = evidence.scores, evidence.codes
    if scores.items is not None:
        return jackknife_means(scores.items[a].mean(axis=0) - scores.items[b].mean(axis=0), codes)
    assert scores.functions is not None
    first, second = ([jackknife_metric(run, codes) for run in scores.functions[m]] for m in (a, b))
    return np.asarray(np.mean(first, axis=0) - np.mean(second, axis=0))


def _crossed_interval(evidence: Evidence, a: int, b: int) -> tuple[float, float]:
    """The percentile interval when seeds and items are both resampled."""
    assert evidence.draws is not None
    per_run = evidence.draws[:, a] - evidence.draws[:, b]
    return percentile_interval(reweighted_runs(per_run, evidence.settings.seed), evidence.settings.level)
