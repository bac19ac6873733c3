"""Short written answers: relaxed accuracy (ChartQA, Masry et al., 2022) and ANLS (Biten et al., 2019; DocVQA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Document = Mapping[str, Any]
TOLERANCE: Final = 0.05
THRESHOLD: Final = 0.5


def relaxed(said: str, right: str) -> bool:
    """Whether numbers differ by 5 % of the right one at most, or texts are equal but for case.

    A percentage is a hundredth; a right answer of 0 must be met.
    """
    given, wanted = number(said), number(right)
    if given is None or wanted is None:
        return said.strip().lower() == right.strip().lower()
    return abs(given - wanted) <= TOLERANCE * abs(wanted)


def number(text: str) -> float | None:
    """The number that a text is, or None; `45%` is 0.45."""
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%"))
    except ValueError:
        return None
    return value / 100 if plain.endswith("%") else value


def chart_results(doc: Document, responses: Sequence[str]) -> dict[str, float]:
    """`relaxed_accuracy`, over all documents and over those of the document's own part."""
    right = float(relaxed(responses[0], str(doc["answer"])))
    part = "human" if str(doc.get("type", "")).startswith("human") else "augmented"
    return {"relaxed_accuracy": right, f"relaxed_accuracy_{part}": right}


def anls(said: str, answers: Sequence[str]) -> float:
    """The similarity to the nearest of the right answers: 1 - distance / length, and 0 where that is below 0.5."""
    return max((_similarity(said, answer) for answer in answers), default=0.0)


def document_results(doc: Document, responses: Sequence[str]) -> dict[str, float]:
    """`anls` of the response."""
    return {"anls": anls(responses[0], doc["answers"])}


def _similarity(said: str, right: str) -> float:
    a, b = (" ".join(text.lower().split()) for text in (said, right))
    longest = max(len(a), len(b))
    score = 1 - distance(a, b) / longest if longest else 1.0
    return score if score > 1 - THRESHOLD else 0.0


def distance(a: str, b: str) -> int:
    """Levenshtein's distance: the fewest letters to insert, remove or replace."""
    above = list(range(len(b) + 1))
    for row, letter in enumerate(a, 1):
        current = [row]
        for column, other in enumerate(b, 1):
            current.append(min(above[column] + 1, current[-1] + 1, above[column - 1] + (letter != other)))
        above = current
    return above[-1]
