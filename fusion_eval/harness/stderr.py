"""Standard errors of aggregated scores.

By default closed forms, or a bootstrap over sufficient statistics; with `compat` the peer's own stream of resamples
(chunk i of 1,000 replicates draws with Python's generator seeded with i), vectorised.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fusion_eval.harness import aggregation as agg

Array = np.ndarray[Any, Any]
REPLICATES = 10_000
TEXT_REPLICATES = 1_000
PEER_REPLICATES = 100_000
PEER_TEXT_REPLICATES = 100
_TEXT = {agg.bleu: "bleu", agg.chrf: "chrf", agg.chrf_words: "chrf++", agg.ter: "ter"}
_CHUNK = 1_000


def stderr(function: agg.Aggregation, items: Sequence[Any], seed: int = 0) -> float | None:
    """The standard error of `function(items)`, or None where there is none to be had.

    Args:
        function: an aggregation of `fusion_eval.harness.aggregation`, or one with a function `stderr` of its own, which
            takes the values; any other gives None.
        items: the values of all documents.
        seed: of the bootstrap.
    """
    if len(items) < 2:
        return None
    own = getattr(function, "stderr", None)
    if callable(own):
        error = own(items)
        return None if error is None else float(error)
    if function in (agg.mean, agg.nanmean):
        return _mean_stderr(np.asarray(items, dtype=float))
    if function is agg.brier_score:
        return _mean_stderr(agg.brier_terms(items))
    if function is agg.median:
        return _median_stderr(np.sort(np.asarray(items, dtype=float)))
    if function in (agg.perplexity, agg.weighted_perplexity, agg.bits_per_byte):
        return _log_stderr(function, items)
    if function is agg.f1:
        return _spread(agg.f1_of_counts(_multinomial(agg.binary_counts(items), seed)))
    if function is agg.matthews:
        matrix = agg.confusion(items)
        drawn = _multinomial(matrix.ravel().astype(int), seed).reshape(-1, *matrix.shape)
        return _spread(agg.matthews_of_counts(drawn))
    if function in _TEXT:
        return _text_stderr(_TEXT[function], items, seed)
    return None


def _mean_stderr(values: Array) -> float | None:
    values = values[~np.isnan(values)]
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def _median_stderr(ordered: Array) -> float:
    """Exact bootstrap deviation of the order statistic `n // 2` (its distribution is binomial)."""
    from scipy.stats import binom

    n = len(ordered)
    below = binom.sf(n // 2, n, np.arange(n + 1) / n)
    weights = np.diff(below)
    centre = float(weights @ ordered)
    return math.sqrt(float(weights @ (ordered - centre) ** 2))


def _log_stderr(function: agg.Aggregation, items: Sequence[Any]) -> float | None:
    """Delta method: the error of a mean, or of a ratio of sums, through exp or ln 2."""
    if isinstance(items[0], (tuple, list)):
        values, weights = np.asarray(items, dtype=float).T
        rate = values.sum() / weights.sum()
        error = _mean_stderr((values - rate * weights) / weights.mean())
    else:
        rate, error = float(np.mean(items)), _mean_stderr(np.asarray(items, dtype=float))
    if error is None:
        return None
    return error / math.log(2) if function is agg.bits_per_byte else math.exp(min(-rate, 700.0)) * error


def _multinomial(counts: Array, seed: int) -> Array:
    """Resampled counts [replicates, cells]: what resampling the items does to their counts."""
    n = int(counts.sum())
    return np.random.default_rng(seed).multinomial(n, counts / n, size=REPLICATES)


def _text_statistics(name: str, items: Sequence[Any]) -> tuple[Any, Array]:
    metric = agg.sacre_metric(name)
    predictions, references = agg.sacre_inputs(items)
    return metric, np.asarray(metric._extract_corpus_statistics(predictions, references))


def _text_scores(metric: Any, sums: Array) -> Array:
    rows = sums.tolist() if np.issubdtype(sums.dtype, np.floating) else sums.astype(int).tolist()
    return np.array([metric._compute_score_from_stats(row).score for row in rows])


def _text_stderr(name: str, items: Sequence[Any], seed: int) -> float:
    metric, statistics = _text_statistics(name, items)
    n, generator = len(items), np.random.default_rng(seed)
    sums = []
    for start in range(0, TEXT_REPLICATES, 100):
        size = min(100, TEXT_REPLICATES - start)
        picks = generator.integers(0, n, (size, n))
        weights = np.stack([np.bincount(row, minlength=n) for row in picks])
        sums.append(weights @ statistics)
    return _spread(_text_scores(metric, np.concatenate(sums)))


def _spread(replicates: Array) -> float:
    return float(np.std(replicates, ddof=1))


def compat_stderr(function: agg.Aggregation, items: Sequence[Any], iterations: int = PEER_REPLICATES) -> float | None:
    """The peer's number: closed form for a mean, else its bootstrap; None where the peer says "N/A".

    Args:
        function: an aggregation.
        items: the values of all documents.
        iterations: replicates; at most 100 of them for bleu, chrf and ter; 0 for none.
    """
    if len(items) < 2 or iterations <= 0:
        return None
    if function is agg.mean:
        return _peer_mean_stderr(items)
    statistic = _peer_statistic(function, items)
    if statistic is None:
        return None
    if function in _TEXT:
        iterations = min(iterations, PEER_TEXT_REPLICATES)
    size = min(_CHUNK, iterations)
    drawn = [statistic(picks) for picks in peer_picks(len(items), iterations // size, size)]
    return _spread(np.concatenate(drawn))


def _peer_mean_stderr(items: Sequence[Any]) -> float:
    centre = agg.mean(items)
    return math.sqrt(sum((x - centre) ** 2 for x in items) / (len(items) - 1)) / math.sqrt(len(items))


def _peer_statistic(function: agg.Aggregation, items: Sequence[Any]) -> Callable[[Array], Array] | None:
    """Picks [replicates, n] -> values [replicates], or None for a function that the peer does not bootstrap."""
    if function in _TEXT:
        metric, statistics = _text_statistics(_TEXT[function], items)
        return lambda picks: _text_scores(metric, np.stack([statistics[row].sum(0) for row in picks]))
    if function in (agg.f1, agg.matthews):
        return _peer_pair_statistic(function, items)
    if function not in (agg.median, agg.perplexity, agg.nanmean):
        return None
    values = np.asarray(items, dtype=float)
    if function is agg.perplexity:
        return lambda picks: np.exp(-values[picks].mean(1))
    if function is agg.nanmean:
        return lambda picks: np.nanmean(values[picks], axis=1)
    return lambda picks: np.sort(values[picks], axis=1)[:, picks.shape[1] // 2]


def _peer_pair_statistic(function: agg.Aggregation, items: Sequence[Any]) -> Callable[[Array], Array]:
    pairs = [(agg._label(gold), agg._label(predicted)) for gold, predicted in items]
    labels = {label: i for i, label in enumerate(sorted({x for pair in pairs for x in pair} | {0, 1}, key=str))}
    size = len(labels)
    cells = np.array([labels[gold] * size + labels[predicted] for gold, predicted in pairs])

    def statistic(picks: Array) -> Array:
        counts = np.stack([np.bincount(cells[row], minlength=size * size) for row in picks]).reshape(-1, size, size)
        if function is agg.matthews:
            return np.asarray(agg.matthews_of_counts(counts.astype(float)))
        one, zero = labels[1], labels[0]
        columns = [counts[:, one, one], counts[:, zero, one], counts[:, one, zero], counts[:, zero, zero]]
        return np.asarray(agg.f1_of_counts(np.stack(columns, axis=1)))

    return statistic


def peer_picks(n: int, chunks: int, size: int) -> Iterator[Array]:
    """Positions [size, n] that `random.Random(chunk).choices` draws, chunk after chunk."""
    for chunk in range(chunks):
        state = random.Random(chunk).getstate()[1]
        generator = np.random.RandomState()
        generator.set_state(("MT19937", np.array(state[:-1], dtype=np.uint32), int(state[-1]), 0, 0.0))
        yield (generator.random_sample(size * n) * n).astype(np.int64).reshape(size, n)
