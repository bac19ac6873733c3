"""Whether texts are equal, after removing what does not count."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np


def exact_match(
    predictions: Sequence[Any], references: Sequence[Any], regexes_to_ignore: Sequence[str] | None = None,
    ignore_case: bool = False, ignore_punctuation: bool = False, ignore_numbers: bool = False,
) -> dict[str, float]:  # fmt: skip
    """The share of equal pairs after removing, in this order: patterns, case, ASCII punctuation, digits."""
    left, right = np.asarray(predictions), np.asarray(references)
    for pattern in regexes_to_ignore or ():
        left = np.array([re.sub(pattern, "", text) for text in left])
        right = np.array([re.sub(pattern, "", text) for text in right])
    if ignore_case:
        left, right = np.char.lower(left), np.char.lower(right)
    for ignored, characters in ((ignore_punctuation, string.punctuation), (ignore_numbers, string.digits)):
        if ignored:
            table = str.maketrans("", "", characters)
            left, right = _translated(left, table), _translated(right, table)
    return {"exact_match": float(np.mean(left == right))}


def _translated(texts: Any, table: dict[int, int | None]) -> Any:
    return np.char.translate(texts, table)  # type: ignore[call-overload]
