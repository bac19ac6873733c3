"""Many methods on many tasks: the claim is about other tasks, so tasks are the units.

Demsar 2006 ("Statistical comparisons of classifiers over multiple data sets"): Friedman's test, then Nemenyi's
critical difference or Wilcoxon's signed ranks with Holm's correction. Aggregates follow Agarwal et al. 2021 (arXiv
2108.13264).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fusion_eval.errors import Fault, StatisticsError, missing_dependency
from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.bootstrap import percentile_interval
from fusion_eval.stats.comparison import BETTER, INCONCLUSIVE, WORSE
from fusion_eval.stats.correction import check_correction, correct, smallest_corrected
from fusion_eval.stats.plot import critical_difference_figure
from fusion_eval.stats.power import smallest_p
from fusion_eval.stats.ranking import rank_intervals, ranks_of, tie_groups
from fusion_eval.stats.resample import RESAMPLES, resampled_means
from fusion_eval.stats.scores import Scores

POSTHOCS = ("nemenyi", "wilcoxon", "conover")


@final
@dataclass(frozen=True, slots=True)
class TaskComparison:
    """Methods ranked over tasks.

    Args:
        methods: the methods.
        n_tasks: the number of tasks.
        means: mean score of every method.
        mean_ranks: mean rank of every method, 1 for the best.
        rank_draws: interval of the mean rank over resampled tasks, per method.
        friedman_p: of the hypothesis that all methods rank alike; NaN for two methods.
        critical_difference: mean ranks further apart than this differ (Nemenyi).
        posthoc: how the pairs were tested.
        p_values: corrected p of every pair, shape (methods, methods).
        rank_intervals: possible ranks of every method given the verdicts.
        groups: neighbours in rank that were not shown to differ.
        alpha: the level.
        warnings: what a reader must know.
    """

    methods: tuple[str, ...]
    n_tasks: int
    means: tuple[float, ...]
    mean_ranks: tuple[float, ...]
    rank_draws: tuple[tuple[float, float], ...]
    friedman_p: float
    critical_difference: float
    posthoc: str
    p_values: Floats
    rank_intervals: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, ...], ...]
    alpha: float
    warnings: tuple[str, ...] = ()

    claim = "other tasks"

    def verdict(self, method_a: str, method_b: str) -> str:
        """Better, worse or inconclusive: method_a against method_b on other tasks like these."""
        a, b = self.methods.index(method_a), self.methods.index(method_b)
        if not self.p_values[a, b] < self.alpha:
            return INCONCLUSIVE
        return BETTER if self.mean_ranks[a] < self.mean_ranks[b] else WORSE

    def plot(self) -> Any:
        """The critical difference diagram as a matplotlib figure."""
        title = f"mean rank over {self.n_tasks} tasks; critical difference {self.critical_difference:.2f}"
        return critical_difference_figure(self.methods, self.mean_ranks, self.groups, title)


def compare_tasks(
    scores: Mapping[str, ArrayLike],
    *,
    higher_is_better: bool = True,
    alpha: float = 0.05,
    posthoc: str = "nemenyi",
    correction: str = "holm",
) -> TaskComparison:
    """Methods compared over tasks: method -> one score per task, the same tasks in the same order.

    Args:
        scores: the scores.
        higher_is_better: their direction.
        alpha: the level.
        posthoc: pairs by `nemenyi` (needs no correction), `wilcoxon`, or `conover` (scikit-posthocs).
        correction: of the Wilcoxon or Conover p-values.
    """
    table = _checked(scores, posthoc, correction)
    values = table.values
    count, n_tasks = values.shape
    ranks = ranks_of(values.T, higher_is_better=higher_is_better)
    mean_ranks = ranks.mean(axis=0)
    p_values = _pairwise(values, mean_ranks, posthoc, correction)
    beats = (p_values < alpha) & (mean_ranks[:, np.newaxis] < mean_ranks[np.newaxis])
    order = [int(m) for m in np.argsort(mean_ranks, kind="stable")]
    draws = resampled_means(ranks, None, RESAMPLES, 0)
    return TaskComparison(
        methods=table.methods,
        n_tasks=n_tasks,
        means=tuple(values.mean(axis=1).tolist()),
        mean_ranks=tuple(mean_ranks.tolist()),
        rank_draws=tuple(percentile_interval(draws[:, m], 1 - alpha) for m in range(count)),
        friedman_p=friedman(values),
        critical_difference=critical_difference(count, n_tasks, alpha),
        posthoc=posthoc,
        p_values=p_values,
        rank_intervals=tuple(rank_intervals(beats)),
        groups=tuple(tuple(group) for group in tie_groups(order, beats | beats.T)),
        alpha=alpha,
        warnings=_warnings(count, n_tasks, alpha, posthoc, correction),
    )


def _checked(scores: Mapping[str, ArrayLike], posthoc: str, correction: str) -> Scores:
    if posthoc not in POSTHOCS:
        raise StatisticsError(Fault("posthoc", repr(posthoc), f"one of {', '.join(POSTHOCS)}"))
    check_correction(correction)
    table = Scores.from_values("tasks", scores)
    if table.n_runs < 2:
        raise StatisticsError(Fault("tasks", f"{table.n_runs} task", "at least two tasks"))
    return table


def friedman(values: Floats) -> float:
    """Friedman's p of a (methods, tasks) table; NaN for two methods, 1 where all scores are equal."""
    if len(values) < 3:
        return math.nan
    if bool((values == values[0]).all()):
        return 1.0
    return float(stats.friedmanchisquare(*values).pvalue)


def critical_difference(methods: int, tasks: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of mean ranks: q_alpha sqrt(k (k + 1) / (6 N))."""
    quantile = float(stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * tasks))


def _pairwise(values: Floats, mean_ranks: Floats, posthoc: str, correction: str) -> Floats:
    count, tasks = values.shape
    if posthoc == "nemenyi":
        gaps = np.abs(mean_ranks[:, np.newaxis] - mean_ranks[np.newaxis])
        statistic = gaps / math.sqrt(count * (count + 1) / (6 * tasks)) * math.sqrt(2)
        p = np.asarray(stats.studentized_range.sf(statistic, count, np.inf))
        np.fill_diagonal(p, 1.0)
        return p
    upper = np.triu_indices(count, 1)
    if posthoc == "wilcoxon":
        raw = [_signed_ranks(values[a], values[b]) for a, b in zip(*upper, strict=True)]
    else:
        raw = _conover(values)[upper].tolist()
    p = np.ones((count, count))
    p[upper] = correct(raw, correction)
    return np.minimum(p, p.T)


def _signed_ranks(a: Floats, b: Floats) -> float:
    return 1.0 if np.allclose(a, b) else float(stats.wilcoxon(a, b).pvalue)


def _conover(values: Floats) -> Floats:
    try:
        import scikit_posthocs
    except ImportError as error:
        raise missing_dependency("scikit-posthocs", "stats", "posthoc='conover'") from error
    return np.asarray(scikit_posthocs.posthoc_conover_friedman(values.T), dtype=np.float64)


def _warnings(count: int, tasks: int, alpha: float, posthoc: str, correction: str) -> tuple[str, ...]:
    found = []
    if tasks < 5:
        found.append(f"only {tasks} tasks: a claim about other tasks rests on very little")
    pairs = count * (count - 1) // 2
    if posthoc == "wilcoxon":
        reachable = smallest_corrected(smallest_p("wilcoxon", tasks), pairs, correction)
        if reachable >= alpha:
            found.append(
                f"wilcoxon over {tasks} tasks and {pairs} pairs cannot fall below p={reachable:.3g} ({correction})"
            )
    if posthoc == "nemenyi" and critical_difference(count, tasks, alpha) > count - 1:
        found.append(f"the critical difference exceeds the largest gap of ranks, {count - 1}: nothing can be shown")
    return tuple(found)


def interquartile_mean(values: ArrayLike) -> float:
    """The mean of the middle half of all scores: less swayed by one task than the mean, steadier than the median."""
    return float(stats.trim_mean(np.asarray(values, dtype=np.float64), 0.25, axis=None))


def probability_of_improvement(a: Floats, b: Floats) -> float:
    """The chance that a run of a beats a run of b on a task drawn at random, ties half; (runs, tasks) each."""
    wins = (a[:, np.newaxis] > b[np.newaxis]).mean(axis=(0, 1)) + (a[:, np.newaxis] == b[np.newaxis]).mean(
        axis=(0, 1)
    ) / 2
    return float(wins.mean())
