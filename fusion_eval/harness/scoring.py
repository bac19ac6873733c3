"""Metric values of one document, by output type, where the task does not compute its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.metric import BoundMetric

NO_GOLD = -100
NO_ANSWER = "the answer is none of the choices"


def loglikelihood(result: Any, metrics: Sequence[str]) -> dict[str, Any]:
    """Values of one scored continuation: `perplexity` its log-likelihood, `acc` whether it is the greedy one."""
    score, greedy = result
    values = {"perplexity": score, "acc": int(greedy)}
    return {name: values[name] for name in values if name in metrics}


def ranked(results: Sequence[Any], metrics: Sequence[str]) -> dict[str, Any]:
    """Values where the first of several continuations is right: `acc` whether it is the likeliest."""
    scores = [score for score, _ in results]
    values = {"perplexity": scores[0], "acc": float(int(np.argmax(scores)) == 0)}
    return {name: values[name] for name in values if name in metrics}


def rolling(score: float, words: int, size: int, metrics: Sequence[str]) -> dict[str, Any]:
    """Values of a whole text: (log-likelihood, count of words, bytes or tokens)."""
    values: dict[str, Any] = {
        "word_perplexity": (score, words), "byte_perplexity": (score, size), "bits_per_byte": (score, size),
    }  # fmt: skip
    if getattr(score, "tokens", 0):
        values["perplexity"] = (score, score.tokens)  # type: ignore[attr-defined]
    return {name: values[name] for name in values if name in metrics}


@dataclass(frozen=True, slots=True)
class ChoiceGold:
    """The right answer of a document: an index, several, or `NO_GOLD`."""

    value: int | list[int]

    def holds(self, predicted: int) -> bool:
        """Whether a prediction is right."""
        return predicted in self.value if isinstance(self.value, list) else predicted == self.value

    def any_greedy(self, greedy: Sequence[bool]) -> int:
        """Whether a right choice is what the model would say."""
        golds = self.value if isinstance(self.value, list) else [self.value]
        return int(any(greedy[gold] for gold in golds if gold != NO_GOLD))


def choice_gold(target: Any, choices: Sequence[str]) -> Any:
    """The index (or indices) of a target; one that is out of range or not among the choices becomes `NO_GOLD`."""
    if isinstance(target, list):
        return [gold if gold < len(choices) else NO_GOLD for gold in target]
    if isinstance(target, str):
        return choices.index(target) if target in choices else NO_GOLD
    if isinstance(target, int):
        return target if target < len(choices) else NO_GOLD
    return target


def is_among(gold: Any) -> bool:
    """Whether what `choice_gold` gives names a choice."""
    return any(part != NO_GOLD for part in gold) if isinstance(gold, list) else gold != NO_GOLD


def multiple_choice(
    results: Sequence[Any], choices: Sequence[str], gold: Any, metrics: Sequence[str]
) -> dict[str, Any]:
    """Values of a multiple-choice document.

    Args:
        results: (log-likelihood, greedy) per choice; for `acc_mutual_info` the unconditional ones follow.
        choices: their texts, without delimiter.
        gold: index or indices.
        metrics: names that the task asks for.

    Raises:
        DataError: no choices, an empty choice where lengths normalise, or a result that is missing.
    """
    _check_choices(results, choices, metrics)
    scores, greedy = zip(*results, strict=True)
    free = scores[len(choices) :]
    scores = scores[: len(choices)]
    right = ChoiceGold(gold)
    predicted = int(np.argmax(scores))
    values: dict[str, Any] = {
        "acc": float(right.holds(predicted)),
        "f1": (gold, predicted),
        "mcc": (gold, predicted),
    }
    for name, lengths in (("acc_norm", [len(c) for c in choices]), ("acc_bytes", [len(c.encode()) for c in choices])):
        if name in metrics:
            values[name] = float(right.holds(int(np.argmax(np.array(scores) / np.array(lengths, dtype=float)))))
    values["exact_match"] = right.any_greedy(greedy)
    values["brier_score"] = (gold, softmax(scores))
    values["likelihood"] = (gold, scores)
    if "acc_mutual_info" in metrics:
        gains = np.array(scores) - np.array(free)
        values["acc_mutual_info"] = float(right.holds(int(np.argmax(gains))))
    return {name: values[name] for name in values if name in metrics}


def _check_choices(results: Sequence[Any], choices: Sequence[str], metrics: Sequence[str]) -> None:
    if not choices:
        raise DataError(Fault("doc_to_choice", "gives no choices", "at least one"))
    if len(results) not in (len(choices), 2 * len(choices)):
        raise DataError(Fault("doc_to_choice", f"{len(results)} results for {len(choices)} choices", "one per choice"))
    if {"acc_norm", "acc_bytes"} & set(metrics) and not all(choices):
        raise DataError(Fault("doc_to_choice", "gives an empty choice", "text", "Leave out acc_norm and acc_bytes."))


def softmax(scores: Sequence[float]) -> np.ndarray[Any, Any]:
    """Probabilities proportional to exp(scores)."""
    values = np.asarray(scores, dtype=np.float64)
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum())


def generated(result: Any, gold: Any, metrics: Sequence[BoundMetric], several: bool) -> dict[str, Any]:
    """Values of a generated text.

    Args:
        result: the filtered response.
        gold: the target; a list of acceptable ones where `several`.
        metrics: what to compute.
        several: a document is right if any of its golds gives a score above zero.
    """
    values: dict[str, Any] = {}
    for metric in metrics:
        if metric.call is None:
            continue
        score = _any_gold(metric, gold, result) if several else metric.call(gold, result)
        if isinstance(score, Mapping):
            values.update(score)
        else:
            values[metric.name] = score
    return values


def _any_gold(metric: BoundMetric, gold: Any, result: Any) -> float:
    assert metric.call is not None
    scores = []
    for option in gold if isinstance(gold, list) else [gold]:
        score = metric.call(option, result)
        scores.append(score[metric.name] if isinstance(score, Mapping) else score)
    return 1.0 if any(scores) else 0.0


def as_type_of(gold: Any, result: Any) -> Any:
    """The gold in the type of the response, as far as it can be cast."""
    return gold if type(gold) is type(result) or isinstance(result, list) else type(result)(gold)
