"""What a reader of a comparison must be warned about, with the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_eval.stats.correction import smallest_corrected
from fusion_eval.stats.intervals import FEW_FOR_NORMAL, FEW_UNITS
from fusion_eval.stats.outcome import CLUSTERS, CROSSED, ITEMS
from fusion_eval.stats.pairs import Evidence, Pair
from fusion_eval.stats.resample import resamples_for
from fusion_eval.stats.settings import Settings


def warnings_of(
    evidence: Sequence[Evidence], pairs: Sequence[tuple[Evidence, Pair]], settings: Settings
) -> tuple[str, ...]:
    """The warnings of all metrics: notes of the metrics, few units, significance out of reach; each once."""
    found: list[str] = []
    for each in evidence:
        mine = [pair for _, pair in pairs if pair.scores is each.scores]
        family = len(mine) if settings.family == "metric" else len(pairs)
        found += [*each.scores.notes, *_size_warnings(each, mine), *_floor_warnings(each, mine, family)]
    return tuple(dict.fromkeys(found))


def _size_warnings(each: Evidence, pairs: Sequence[Pair]) -> list[str]:
    scores, asked = each.scores, each.settings.resamples
    found = []
    by_t = any(pair.outcome.unit in (ITEMS, CLUSTERS) and pair.outcome.test == "ttest_rel" for pair in pairs)
    size = f"{each.n_units} {each.item_unit}"
    if scores.has_items and each.n_units < FEW_UNITS:
        few = size.removesuffix("s") if each.n_units == 1 else size
        found.append(f"only {few}: item statistics are rough below {FEW_UNITS}")
    elif by_t and each.n_units < FEW_FOR_NORMAL:
        found.append(f"{size}, fewer than {FEW_FOR_NORMAL}: check close calls with test='permutation'")
    if any(pair.outcome.unit == CROSSED for pair in pairs) and scores.n_runs == 2:
        found.append("2 seeds say little about the recipe: only large differences can be shown")
    drawn = resamples_for(scores.n_items, asked)
    if scores.functions is not None and drawn < asked:
        found.append(f"{drawn} instead of {asked} resamples for {scores.n_items} items")
    return [f"{scores.metric}: {text}" for text in found]


def _floor_warnings(each: Evidence, pairs: Sequence[Pair], family: int) -> list[str]:
    """Tests that cannot become significant, with the smallest corrected p they can reach."""
    settings = each.settings
    found = []
    for outcome in (pair.outcome for pair in pairs):
        reachable = smallest_corrected(outcome.floor, family, settings.correction)
        if reachable < settings.alpha:
            continue
        text = f"{outcome.test} over {outcome.n_units} {outcome.unit} cannot fall below p={outcome.floor:.3g}"
        if reachable > outcome.floor:
            text += f", which {settings.correction} over {family} tests makes {reachable:.3g}"
        do = f"alpha={settings.alpha:g} is out of reach: use more units or a t test"
        found.append(f"{each.scores.metric}: {text}; {do}")
    return found
