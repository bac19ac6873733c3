"""Methods compared on scores: tested pair by pair, corrected over the stated family, with a verdict each."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusion_eval.errors import Fault, StatisticsError, listed
from fusion_eval.stats.arrays import Ints, as_clusters
from fusion_eval.stats.comparison import Comparison, verdict_of
from fusion_eval.stats.correction import correct_by_family
from fusion_eval.stats.effects import discordant, item_correlation
from fusion_eval.stats.pairs import Evidence, Pair, evidence_of, pairs_of
from fusion_eval.stats.power import minimal_detectable_effect
from fusion_eval.stats.result import ComparisonResult
from fusion_eval.stats.scores import Scores
from fusion_eval.stats.settings import Settings, SettingsArguments, settings_of
from fusion_eval.stats.summary import summaries_of
from fusion_eval.stats.warn import warnings_of

Clusters = Sequence[Any] | NDArray[Any]


def compare_scores(
    scores: Mapping[str, ArrayLike],
    *,
    metric_name: str = "score",
    clusters: Clusters | None = None,
    higher_is_better: bool = True,
    **settings: Unpack[SettingsArguments],
) -> ComparisonResult:
    """Methods compared on per-item scores of one metric.

    Args:
        scores: method -> scores, (items,) for one run or (runs, items); the same items in the same order for all
            methods.
        metric_name: the metric's name.
        clusters: a label per item; items with one label (same document, user, question) depend on each other.
        higher_is_better: the metric's direction.
        **settings: test, unit, alpha, correction, family, reference, rope, power, interval, resamples, seed (see
            `Settings`).

    Raises:
        StatisticsError: scores, names, clusters or settings that cannot be used; all faults at once where possible.
    """
    measured = Scores.from_items(metric_name, scores, higher_is_better=higher_is_better)
    return compare_metrics([measured], clusters=clusters, **settings)


def compare_values(
    values: Mapping[str, Mapping[str, ArrayLike]],
    *,
    higher_is_better: Mapping[str, bool] | None = None,
    **settings: Unpack[SettingsArguments],
) -> ComparisonResult:
    """Methods compared on values of whole runs: metric -> method -> one value per seed."""
    directions = higher_is_better or {}
    measured = [Scores.from_values(m, v, higher_is_better=directions.get(m, True)) for m, v in values.items()]
    return compare_metrics(measured, **settings)


def compare_metrics(
    measured: Sequence[Scores],
    *,
    clusters: Clusters | None = None,
    receipt: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingsArguments],
) -> ComparisonResult:
    """Methods compared on several metrics of the same runs.

    Args:
        measured: the scores of every metric.
        clusters: a label per item, or None.
        receipt: what the caller wants kept with the result: models, data, versions.
        **settings: see `Settings`.
    """
    chosen = settings_of(settings)
    _check(measured, chosen)
    codes = as_clusters(clusters, max(scores.n_items for scores in measured)) if clusters is not None else None
    _check_clusters(measured, codes)
    evidence = [evidence_of(scores, codes if scores.has_items else None, chosen) for scores in measured]
    pairs = [(each, pair) for each in evidence for pair in pairs_of(each)]
    comparisons = _finished(pairs, chosen)
    summaries = [
        row
        for each in evidence
        for row in summaries_of(each, [c for c in comparisons if c.metric == each.scores.metric])
    ]
    return ComparisonResult(
        scores=tuple(measured),
        comparisons=tuple(comparisons),
        summaries=tuple(summaries),
        settings=chosen,
        clusters=codes,
        warnings=warnings_of(evidence, pairs, chosen),
        receipt={**_versions(), **dict(receipt or {})},
    )


def _check(measured: Sequence[Scores], settings: Settings) -> None:
    if not measured:
        raise StatisticsError(Fault("compare", "no metrics", "the scores of at least one metric"))
    faults = []
    names = [scores.metric for scores in measured]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        faults.append(Fault("compare", f"metric {listed(twice)} given twice", "every metric once"))
    methods = measured[0].methods
    for scores in measured:
        if scores.methods != methods:
            found = f"methods {listed(scores.methods)}"
            faults.append(Fault(scores.metric, found, f"{listed(methods)}, as for {measured[0].metric}"))
        if not scores.has_items and settings.unit == "items":
            faults.append(Fault(f"{scores.metric}, unit='items'", "no per-item scores", "scores of items"))
    if not any(scores.has_items or scores.n_runs > 1 for scores in measured):
        do = "Give per-item scores, or values of several seeds."
        faults.append(Fault(listed(names), "one value per method: there is nothing to test", "items or seeds", do))
    faults += settings.reference_faults(methods) + settings.rope_faults(names)
    if settings.unit == "seeds" and all(scores.n_runs == 1 for scores in measured):
        faults.append(Fault("unit='seeds'", "one run of every method", "several seeds"))
    if faults:
        raise StatisticsError(*faults)


def _check_clusters(measured: Sequence[Scores], codes: Ints | None) -> None:
    sizes = {scores.metric: scores.n_items for scores in measured if scores.n_items}
    if codes is not None and len(set(sizes.values())) > 1:
        found = ", ".join(f"{metric} has {n} items" for metric, n in sizes.items())
        raise StatisticsError(Fault("clusters", found, "the same items for every metric when clusters are given"))


def _finished(pairs: Sequence[tuple[Evidence, Pair]], settings: Settings) -> list[Comparison]:
    """The pairs with p-values corrected in their families, and verdicts."""
    families = [pair.scores.metric if settings.family == "metric" else "all" for _, pair in pairs]
    columns = (
        [pair.outcome.p for _, pair in pairs],
        [math.nan if pair.item is None else pair.item.p for _, pair in pairs],
        [pair.equivalence_p for _, pair in pairs],
    )
    corrected = [correct_by_family(column, families, settings.correction) for column in columns]
    return [
        _comparison(each, pair, (float(p), float(item_p), float(equal)), families.count(family))
        for (each, pair), family, p, item_p, equal in zip(pairs, families, *corrected, strict=True)
    ]


def _comparison(each: Evidence, pair: Pair, corrected: tuple[float, float, float], family_size: int) -> Comparison:
    scores, settings, found = pair.scores, each.settings, pair.outcome
    p, item_p, equivalence_p = corrected
    mean = float(scores.values[pair.a].mean() - scores.values[pair.b].mean())
    strict = settings.alpha / family_size if settings.correction in ("holm", "bonferroni") else settings.alpha
    return Comparison(
        metric=scores.metric,
        method_a=scores.methods[pair.a],
        method_b=scores.methods[pair.b],
        mean_diff=mean,
        effect_size=found.effect,
        p_value=found.p,
        p_corrected=p,
        significant=bool(p < settings.alpha),
        verdict=verdict_of(mean, p, settings.alpha, equivalence_p, higher_is_better=scores.higher_is_better),
        claim=found.claim,
        test=found.test,
        unit=found.unit,
        n_units=found.n_units,
        ci_low=found.low,
        ci_high=found.high,
        stderr=found.stderr,
        df=found.df,
        mde=minimal_detectable_effect(found.stderr, found.df, strict, settings.power),
        rope=settings.rope_of(scores.metric),
        equivalence_p=equivalence_p,
        family_size=family_size,
        correction=settings.correction,
        alpha=settings.alpha,
        notes=found.notes,
        **_item_columns(each, pair, item_p),
    )


def _item_columns(each: Evidence, pair: Pair, item_p: float) -> dict[str, Any]:
    """What a comparison says about its items, and how many there are."""
    scores, item = pair.scores, pair.item
    counts, correlation = _item_facts(scores, pair.a, pair.b)
    better = scores.higher_is_better
    verdict = (
        "" if item is None else verdict_of(item.diff, item_p, each.settings.alpha, math.nan, higher_is_better=better)
    )
    return {
        "item_diff": math.nan if item is None else item.diff,
        "item_ci_low": math.nan if item is None else item.low,
        "item_ci_high": math.nan if item is None else item.high,
        "item_p": math.nan if item is None else item.p,
        "item_p_corrected": item_p,
        "item_verdict": verdict,
        "crossed_ci_low": pair.crossed[0],
        "crossed_ci_high": pair.crossed[1],
        "item_correlation": correlation,
        "only_a": counts[0] if counts else None,
        "only_b": counts[1] if counts else None,
        "n_items": scores.n_items,
        "n_clusters": None if each.codes is None else each.n_units,
        "n_runs": scores.n_runs,
        "higher_is_better": better,
    }


def _item_facts(scores: Scores, a: int, b: int) -> tuple[tuple[int, int] | None, float]:
    if scores.items is None:
        return None, math.nan
    first, second = scores.items[a].mean(axis=0), scores.items[b].mean(axis=0)
    return discordant(first, second), item_correlation(first, second)


def _versions() -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "scipy")}
    return {"versions": versions, "rng": f"numpy {type(np.random.default_rng().bit_generator).__name__}"}
