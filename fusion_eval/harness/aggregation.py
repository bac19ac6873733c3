"""Aggregations: from the values of all documents to one number."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fusion_eval.errors import ConfigError, DataError, Fault, did_you_mean, missing_dependency

Aggregation = Callable[[Sequence[Any]], Any]


def mean(items: Sequence[Any]) -> Any:
    """The arithmetic mean."""
    return sum(items) / len(items)


def median(items: Sequence[Any]) -> Any:
    """The upper median: the element at `n // 2` of the sorted values."""
    return sorted(items)[len(items) // 2]


def nanmean(items: Sequence[float]) -> float:
    """The mean of the values that are numbers; NaN where there are none."""
    values = np.asarray(items, dtype=float)
    return float(np.nanmean(values)) if np.isfinite(values).any() or not np.isnan(values).all() else math.nan


def perplexity(items: Sequence[Any]) -> float:
    """exp(-mean log-likelihood); of (log-likelihood, tokens) pairs, per token."""
    if items and isinstance(items[0], tuple):
        return weighted_perplexity(items)
    return _exp(-float(mean(items)))


def weighted_mean(items: Sequence[tuple[float, float]]) -> float:
    """Sum of values over sum of weights."""
    values, weights = zip(*items, strict=True)
    return float(sum(values) / sum(weights))


def weighted_perplexity(items: Sequence[tuple[float, float]]) -> float:
    """exp(-sum of log-likelihoods / sum of weights)."""
    return _exp(-weighted_mean(items))


def bits_per_byte(items: Sequence[tuple[float, float]]) -> float:
    """-sum of log-likelihoods / sum of bytes / ln 2."""
    return -float(weighted_mean(items)) / math.log(2)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def f1(items: Sequence[tuple[Any, Any]]) -> float:
    """F1 of the class 1 over (gold, prediction) pairs of zeros and ones; 0 where nothing is 1.

    Raises:
        DataError: other labels.
    """
    return float(f1_of_counts(binary_counts(items)))


def binary_counts(items: Sequence[tuple[Any, Any]]) -> np.ndarray[Any, Any]:
    """Counts (true positive, false positive, false negative, true negative)."""
    counts = Counter((_label(gold), _label(predicted)) for gold, predicted in items)
    others = {label for pair in counts for label in pair} - {0, 1}
    if others:
        raise DataError(
            Fault("f1", f"has labels {sorted(map(str, others))[:5]}", "0 and 1", "Give the metric an `aggregation: "
                  "!function` for several classes.")
        )  # fmt: skip
    return np.array([counts[1, 1], counts[0, 1], counts[1, 0], counts[0, 0]])


def f1_of_counts(counts: np.ndarray[Any, Any]) -> Any:
    """F1 of counts along the last axis."""
    true_positive, wrong = counts[..., 0], counts[..., 1] + counts[..., 2]
    return _ratio(2.0 * true_positive, 2.0 * true_positive + wrong)


def matthews(items: Sequence[tuple[Any, Any]]) -> float:
    """Matthews' correlation of (gold, prediction) pairs of any classes; 0 where one side is constant."""
    return float(matthews_of_counts(confusion(items)))


def confusion(items: Sequence[tuple[Any, Any]]) -> np.ndarray[Any, Any]:
    """Confusion matrix [classes, classes], gold along the rows."""
    pairs = [(_label(gold), _label(predicted)) for gold, predicted in items]
    labels = {label: i for i, label in enumerate(sorted({label for pair in pairs for label in pair}, key=str))}
    matrix = np.zeros((len(labels), len(labels)))
    for gold, predicted in pairs:
        matrix[labels[gold], labels[predicted]] += 1
    return matrix


def matthews_of_counts(matrix: np.ndarray[Any, Any]) -> Any:
    """Matthews' correlation of confusion matrices [..., classes, classes] (Gorodkin 2004)."""
    gold, predicted = matrix.sum(-1), matrix.sum(-2)
    right, total = np.trace(matrix, axis1=-2, axis2=-1), matrix.sum((-2, -1))
    both = right * total - (gold * predicted).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (gold**2).sum(-1))
    return _ratio(both, np.sqrt(spread))


def _ratio(top: Any, bottom: Any) -> Any:
    """Top over bottom, 0 where the bottom is 0."""
    result = np.divide(top, bottom, out=np.zeros_like(np.asarray(bottom, dtype=float)), where=np.asarray(bottom) != 0)
    return float(result) if result.ndim == 0 else result


def _label(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def brier_terms(items: Sequence[tuple[int, Sequence[float]]]) -> np.ndarray[Any, Any]:
    """Squared distance of each probability vector from its gold class."""
    gold = [int(g) for g, _ in items]
    try:
        probabilities = np.array([p for _, p in items], dtype=float)
    except ValueError as error:
        raise DataError(
            Fault("brier_score", "documents have different numbers of choices", "one number for all of them")
        ) from error
    classes = probabilities.shape[1]
    return np.asarray(np.sum((probabilities - np.eye(classes)[gold]) ** 2, axis=1))


def brier_score(items: Sequence[tuple[int, Sequence[float]]]) -> float:
    """Mean squared distance between probabilities and the gold class."""
    return float(np.mean(brier_terms(items)))


def bypass(items: Sequence[Any]) -> int:
    """999: a mark that nothing was scored."""
    return 999


def sacre_inputs(items: Sequence[tuple[Any, Any]]) -> tuple[list[str], list[list[str]]]:
    """(predictions, reference streams) in the shape that sacrebleu wants, from (references, prediction) pairs."""
    references = [[gold] if isinstance(gold, str) else list(gold) for gold, _ in items]
    predictions = [_single(predicted) for _, predicted in items]
    return predictions, [list(stream) for stream in zip(*references, strict=False)]


def _single(predicted: Any) -> str:
    if isinstance(predicted, str):
        return predicted
    found = list(predicted)
    if len(found) != 1:
        raise DataError(Fault("bleu, chrf and ter", f"a prediction is {found!r}", "one string per document"))
    return str(found[0])


@functools.cache
def sacre_metric(name: str, sentence: bool = False) -> Any:
    """sacrebleu's metric object: bleu, chrf, chrf++ or ter, with the library's defaults for corpora or sentences."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
        from sacrebleu.metrics.ter import TER
    except ImportError as error:
        raise missing_dependency("sacrebleu", "language", f"the metric {name}") from error
    makers: dict[str, Any] = {"bleu": BLEU, "chrf": CHRF, "chrf++": functools.partial(CHRF, word_order=2), "ter": TER}
    return makers[name](effective_order=True) if sentence and name == "bleu" else makers[name]()


def _sacre(name: str, items: Sequence[tuple[Any, Any]]) -> float:
    predictions, references = sacre_inputs(items)
    return float(sacre_metric(name).corpus_score(predictions, references).score)


def bleu(items: Sequence[tuple[Any, Any]]) -> float:
    """Corpus BLEU (Papineni et al., 2002) by sacrebleu, of (references, prediction) pairs."""
    return _sacre("bleu", items)


def chrf(items: Sequence[tuple[Any, Any]]) -> float:
    """Corpus chrF (Popovic, 2015) by sacrebleu."""
    return _sacre("chrf", items)


def chrf_words(items: Sequence[tuple[Any, Any]]) -> float:
    """Corpus chrF++ (Popovic, 2017) by sacrebleu."""
    return _sacre("chrf++", items)


def ter(items: Sequence[tuple[Any, Any]]) -> float:
    """Corpus translation edit rate (Snover et al., 2006) by sacrebleu."""
    return _sacre("ter", items)


AGGREGATIONS: dict[str, Aggregation] = {
    "mean": mean, "median": median, "nanmean": nanmean, "perplexity": perplexity,
    "weighted_perplexity": weighted_perplexity, "bits_per_byte": bits_per_byte, "f1": f1,
    "matthews_corrcoef": matthews, "bleu": bleu, "chrf": chrf, "chrf++": chrf_words, "ter": ter,
    "brier_score": brier_score, "bypass": bypass,
}  # fmt: skip


def get_aggregation(name: Any) -> Aggregation:
    """The aggregation of a name, or the function itself.

    Raises:
        ConfigError: an unknown name.
    """
    if callable(name):
        return name  # type: ignore[no-any-return]
    if name not in AGGREGATIONS:
        hint = did_you_mean(str(name), AGGREGATIONS) or f"Known: {', '.join(sorted(AGGREGATIONS))}."
        raise ConfigError(Fault("metric_list", f"no aggregation is called '{name}'", do=hint))
    return AGGREGATIONS[name]


def numbers(values: Iterable[Any]) -> list[float]:
    """Values as floats."""
    return [float(value) for value in values]
