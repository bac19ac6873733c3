"""Metrics that multimodal tasks ask for by name besides those of language tasks."""

from __future__ import annotations

from collections.abc import Sequence

THRESHOLD = 0.5


def levenshtein(left: str, right: str) -> int:
    """The number of insertions, deletions and substitutions between two texts."""
    if len(left) > len(right):
        left, right = right, left
    row = list(range(len(left) + 1))
    for i, there in enumerate(right, 1):
        previous, row[0] = row[0], i
        for j, here in enumerate(left, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (here != there))
    return row[-1]


def anls(references: Sequence[str], predictions: Sequence[str], thresh_hold: float = THRESHOLD) -> dict[str, float]:
    """Average normalised Levenshtein similarity (Biten et al., 2019): the best one over all references.

    A similarity below the threshold counts as 0. White space is collapsed and case ignored for the distance, which is
    divided by the length of the longer text as it was given (so the challenge's own script has it).
    """
    best = max((1.0 - _distance(str(reference), str(predictions[0])) for reference in references), default=0.0)
    return {"anls": best if best >= thresh_hold else 0.0}


def _distance(left: str, right: str) -> float:
    size = max(len(left), len(right))
    return levenshtein(_normal(left), _normal(right)) / size if size else 0.0


def _normal(text: str) -> str:
    return " ".join(text.lower().split())
