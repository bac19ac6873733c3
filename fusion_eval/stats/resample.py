"""Bootstrap resamples as weights, drawn in blocks and applied as matrix products; never one resample at a time.

Three exact or nearly exact ways, chosen by size:

- item draws: n indices per resample, counted (Efron 1979); one stream of PCG64 so that a seed fixes every digit;
- cells: items with equal scores are interchangeable, so a multinomial over the distinct rows has the same distribution;
- Poisson weights (Hanley and MacGibbon 2006; Chamandy et al. 2012) for many items with many distinct scores.

Rank metrics of many items use their first derivative by the weights (the delta method; for AUROC this is DeLong's
variance).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import gammaln

from fusion_eval.stats.arrays import Floats, Ints
from fusion_eval.stats.item_metric import ItemMetric

RESAMPLES = 10_000
FEWER_RESAMPLES = 2_000
_BLOCK = 1 << 18
_MANY = 1 << 27
_MANY_SORTED = 1 << 24
_CELL_COST = 12


def resampled_means(columns: Floats, codes: Ints | None, resamples: int, seed: int) -> Floats:
    """The means of every column under resampling of the items, or of whole clusters of items.

    Args:
        columns: scores, shape (items, k).
        codes: cluster of every item, or None.
        resamples: the number of resamples B.
        seed: fixes the draws; the same seed gives all columns the same resamples.

    Returns:
        Means of shape (B, k).
    """
    table = np.column_stack([columns, np.ones(len(columns))])
    if codes is not None:
        table = np.stack([np.bincount(codes, weights=column) for column in table.T], axis=1)
    sums = resampled_sums(table, resamples, np.random.default_rng(seed))
    return sums[:, :-1] / sums[:, -1:]


def resampled_sums(table: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Column sums (B, k) of `table` (units, k) over resampled units."""
    n = len(table)
    if n * resamples <= _MANY:
        return _summed(table, item_weights(n, resamples, rng))
    rows, counts = np.unique(table, axis=0, return_counts=True)
    if len(rows) * _CELL_COST <= n:
        return _summed(rows, cell_weights(counts, resamples, rng))
    return _summed(table, poisson_weights(n, resamples, rng))


def _summed(table: Floats, blocks: Iterator[Floats]) -> Floats:
    return np.concatenate([weights @ table for weights in blocks])


def _block_rows(n: int, resamples: int) -> Iterator[int]:
    step = max(1, _BLOCK // max(n, 1))
    for start in range(0, resamples, step):
        yield min(step, resamples - start)


def item_weights(n: int, resamples: int, rng: np.random.Generator, width: int = 0) -> Iterator[Floats]:
    """Blocks of multinomial weights (rows, n) that count n drawn indices per row; rows fit for tables `width` wide."""
    for rows in _block_rows(max(n, width), resamples):
        drawn = rng.integers(0, n, (rows, n)) + np.arange(rows)[:, np.newaxis] * n
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def cell_weights(counts: Ints, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Blocks of multinomial weights (rows, cells) for cells that hold `counts` items each."""
    total = int(counts.sum())
    for rows in _block_rows(len(counts), resamples):
        yield rng.multinomial(total, counts / total, size=rows).astype(np.float64)


def poisson_weights(n: int, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Blocks of independent Poisson(1) weights (rows, n), drawn from 16 random bits each."""
    table = _poisson_table()
    for rows in _block_rows(n, resamples):
        words = rng.integers(0, 1 << 64, size=-(-rows * n // 4), dtype=np.uint64)
        if sys.byteorder == "big":
            words = words.byteswap()
        yield table[words.view(np.uint16)[: rows * n]].reshape(rows, n)


def _poisson_table() -> Floats:
    """65536 equally likely values with the distribution, and exactly the mean, of Poisson(1)."""
    size, k = 1 << 16, np.arange(9)
    counts = np.round(size * np.exp(-1.0 - gammaln(k + 1))).astype(np.int64)
    counts[1] += size - int((counts * k).sum())
    counts[0] += size - int(counts.sum())
    return np.repeat(k.astype(np.float64), counts)


def resamples_for(metric_items: int, resamples: int) -> int:
    """The resamples a metric that is no mean gets: all of them, or 2000 where drawing every item would take long."""
    return resamples if metric_items * resamples <= _MANY else min(resamples, FEWER_RESAMPLES)


def resampled_metrics(metrics: Sequence[ItemMetric], codes: Ints | None, resamples: int, seed: int) -> Floats:
    """The values (B, k) of k metrics on the same resampled items, or clusters of items."""
    rng = np.random.default_rng(seed)
    n = metrics[0].n_items
    slopes = [metric.slopes for metric in metrics if metric.slopes is not None]
    if len(slopes) == len(metrics) and n * resamples > _MANY_SORTED:
        values = np.array([metric.value for metric in metrics])
        return values + n * resampled_means(np.column_stack(slopes), codes, resamples, seed)
    if codes is not None:
        blocks = (weights[:, codes] for weights in item_weights(int(codes.max()) + 1, resamples, rng, n))
        return _valued(metrics, blocks)
    shared = _shared_cells(metrics) if n * resamples > _MANY else None
    if shared is not None and len(shared[0]) * _CELL_COST <= n:
        first, counts = shared
        return _valued([metric.take(first) for metric in metrics], cell_weights(counts, resamples, rng))
    draw = poisson_weights if n * resamples > _MANY else item_weights
    return _valued(metrics, draw(n, resamples, rng))


def _shared_cells(metrics: Sequence[ItemMetric]) -> tuple[Ints, Ints] | None:
    """The first item and the number of items of every joint cell; None when a metric tells no cells."""
    labels = [metric.cells for metric in metrics if metric.cells is not None]
    if len(labels) < len(metrics):
        return None
    _, first, counts = np.unique(np.column_stack(labels), axis=0, return_index=True, return_counts=True)
    return first.astype(np.int64), counts.astype(np.int64)


def _valued(metrics: Sequence[ItemMetric], blocks: Iterator[Floats]) -> Floats:
    return np.concatenate([np.column_stack([metric.of_weights(weights) for metric in metrics]) for weights in blocks])


def crossed_means(runs: Floats, codes: Ints | None, resamples: int, seed: int) -> Floats:
    """The mean (B,) of a (runs, items) table when runs and items are both resampled, independently.

    The bootstrap of two crossed random factors (Owen 2007, "The pigeonhole bootstrap"): its interval covers new seeds
    and new items at once.
    """
    per_run = resampled_means(runs.T, codes, resamples, seed)
    return reweighted_runs(per_run, seed)


def reweighted_runs(per_run: Floats, seed: int) -> Floats:
    """Resampled per-run values (B, runs) averaged over resampled runs (B,)."""
    resamples, n_runs = per_run.shape
    rng = np.random.default_rng([seed, 1])
    weights = rng.multinomial(n_runs, np.full(n_runs, 1 / n_runs), size=resamples)
    return np.asarray((per_run * weights).sum(axis=1) / n_runs)
