"""Scores of one document: by the task's `process_results`, or by the metrics that its file lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.multimodal.metrics import anls


def responses(results: Sequence[Any], strip: bool) -> list[Any]:
    """The responses that a task's own scorer gets.

    Args:
        results: one filtered response per request; of a single one that a filter left as a list, its members.
        strip: LMMS-Eval's tasks get them stripped, Eagle's as they are.
    """
    found = list(results)
    if len(found) == 1 and isinstance(found[0], list):
        found = list(found[0])
    if not strip:
        return found
    return [item.strip() if isinstance(item, str) else "" if item is None else item for item in found]


def checked(scores: Any) -> dict[str, Any]:
    """What `process_results` gave.

    Raises:
        DataError: no mapping from metrics to values.
    """
    if isinstance(scores, Mapping):
        return {str(name): value for name, value in scores.items()}
    raise DataError(
        Fault("process_results", f"gives {scores!r} ({type(scores).__name__})", "a mapping from metrics to values")
    )


def similarity(gold: Any, response: Any, options: Mapping[str, Any], inflated: bool) -> float:
    """ANLS of a response.

    Args:
        gold: acceptable answers.
        response: the text.
        options: of the metric.
        inflated: 1 for any similarity above 0, as Eagle's tree has it where an answer is a list.
    """
    several = isinstance(gold, (list, tuple))
    golds = [str(item) for item in gold] if several else [str(gold)]
    value = anls(golds, [str(response)], **options)["anls"]
    return float(value > 0) if inflated and several else value
