"""The comparison of one pair of methods on one metric, with its verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, final

from fusion_eval.stats.outcome import CLAIMS, ITEMS

_ITEMS = CLAIMS[ITEMS]

BETTER, WORSE, EQUIVALENT, INCONCLUSIVE = "better", "worse", "equivalent", "inconclusive"


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """method_a less method_b on one metric.

    Args:
        metric: the metric.
        method_a: the method that the verdict is about.
        method_b: what it is compared to.
        mean_diff: mean of a less mean of b.
        effect_size: Cohen's d, of paired differences for paired tests, pooled for unpaired ones.
        p_value: of the test named in `test`.
        p_corrected: corrected within the family.
        significant: whether p_corrected is below alpha.
        item_diff: mean difference over the items, runs averaged; NaN like all item columns where no item scores exist.
        item_ci_low: lower end of its bootstrap interval over items, or clusters.
        item_ci_high: upper end.
        item_p: bootstrap p-value over items, or clusters.
        item_p_corrected: corrected within the family.
        verdict: better, worse, equivalent (within the rope) or inconclusive, from p_corrected and the metric's
            direction.
        claim: what the verdict covers: these checkpoints, the recipe (on these items), other tasks.
        item_verdict: the verdict about these checkpoints, from item_p_corrected; empty without items.
        test: the test's name.
        unit: what it counts as independent.
        n_units: how many there are.
        ci_low: lower end of the test's interval of the mean difference.
        ci_high: upper end.
        stderr: standard error of the mean difference.
        df: its degrees of freedom.
        mde: the smallest true difference this comparison finds with the stated power, at the level its family leaves.
        crossed_ci_low: lower end of the bootstrap interval over seeds and items; NaN for one run.
        crossed_ci_high: upper end.
        item_correlation: Pearson's r of the item scores.
        only_a: items that only a got right; None unless scores are 0 or 1 in one run.
        only_b: items that only b got right.
        rope: the region of practical equivalence, or None.
        equivalence_p: corrected p of the two one-sided tests against the rope; NaN without one.
        n_items: items.
        n_clusters: clusters, or None.
        n_runs: runs of every method.
        family_size: tests corrected together.
        correction: how.
        alpha: the level.
        higher_is_better: the metric's direction.
        notes: what a reader must know.
    """

    metric: str
    method_a: str
    method_b: str
    mean_diff: float
    effect_size: float
    p_value: float
    p_corrected: float
    significant: bool
    item_diff: float
    item_ci_low: float
    item_ci_high: float
    item_p: float
    item_p_corrected: float
    verdict: str
    claim: str
    item_verdict: str
    test: str
    unit: str
    n_units: int
    ci_low: float
    ci_high: float
    stderr: float
    df: float
    mde: float
    crossed_ci_low: float
    crossed_ci_high: float
    item_correlation: float
    only_a: int | None
    only_b: int | None
    rope: float | None
    equivalence_p: float
    n_items: int
    n_clusters: int | None
    n_runs: int
    family_size: int
    correction: str
    alpha: float
    higher_is_better: bool
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        return sentence(self)


def verdict_of(difference: float, p: float, alpha: float, equivalence_p: float, *, higher_is_better: bool) -> str:
    """Better, worse, equivalent or inconclusive.

    A difference shown to lie within the rope is equivalent even where it is shown not to be zero: it does not matter
    in practice. NaN compares as not shown.
    """
    if equivalence_p < alpha:
        return EQUIVALENT
    if p < alpha and difference != 0:
        return BETTER if (difference > 0) == higher_is_better else WORSE
    return INCONCLUSIVE


def sentence(found: Comparison) -> str:
    """One sentence that says what was found, how sure it is and what it covers."""
    verdict = {
        BETTER: f"{found.method_a} is better than {found.method_b}",
        WORSE: f"{found.method_a} is worse than {found.method_b}",
        EQUIVALENT: f"{found.method_a} and {found.method_b} are equivalent within {found.rope or 0:.4g}",
        INCONCLUSIVE: f"{found.method_a} and {found.method_b} cannot be told apart",
    }[found.verdict]
    corrected = f" after {found.correction} over {found.family_size}" if found.family_size > 1 else ""
    interval = f"{100 * (1 - found.alpha):.4g}% interval {found.ci_low:+.4g} to {found.ci_high:+.4g}"
    if math.isnan(found.ci_low):
        interval = "no interval"
    evidence = f"{found.mean_diff:+.4g}, {interval}, p={found.p_corrected:.3g}{corrected}"
    text = f"{found.metric}: {verdict} ({evidence}) for {found.claim}"
    if found.verdict == INCONCLUSIVE and math.isfinite(found.mde):
        text += f"; a difference of {found.mde:.3g} could have been found"
    if found.claim != _ITEMS and found.item_verdict not in ("", found.verdict):
        text += f"; for {_ITEMS} alone the verdict is {found.item_verdict} (p={found.item_p_corrected:.3g})"
    return text + "."
