"""Questions with lettered options: ScienceQA, AI2D, MMBench."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from fusion_eval.harness.multimodal.library.prompt import letter_at, options

Document = Mapping[str, Any]
_TURNED: Final = 1_000_000
"""MMBench numbers the rotations of a question with this distance."""


def chosen(response: str, texts: Sequence[str]) -> str | None:
    """The letter that a response chooses among the options, or None where it chooses none or several.

    A letter alone or at the start, as in `B`, `(B)` or `B. a red circle`; after "answer is" or "answer:"; the only
    letter in brackets or with a full stop; else an option's text, alone, or as the only one in the response.
    """
    if not texts:
        return None
    last = letter_at(len(texts) - 1)
    text = response.strip()
    for pattern in (
        rf"\(?([A-{last}])(?:\)|[.:,](?=\s|$)|(?=\s*$)|(?=\s*\n)|(?=\s+[^a-z\s]))",
        rf"(?:.*\b(?i:answer)(?i: is|:)?[:\s]*(?i:option )?)\(?([A-{last}])\b\)?(?!\s+[a-z])",
    ):
        found = re.match(pattern, text, re.DOTALL)
        if found:
            return found[1]
    marked = {a or b for a, b in re.findall(rf"\(([A-{last}])\)|\b([A-{last}])[.:](?=\s|$)", text)}
    if marked:
        return marked.pop() if len(marked) == 1 else None
    return _by_text(text, texts, last)


def _by_text(text: str, texts: Sequence[str], last: str) -> str | None:
    """The letter of the option whose text was said; a lower-case letter counts where it stands alone."""
    plain = text.rstrip(".").strip().lower()
    same = [index for index, option in enumerate(texts) if option.strip().rstrip(".").lower() == plain]
    if len(same) == 1:
        return letter_at(same[0])
    if len(plain) == 1 and "A" <= plain.upper() <= last:
        return plain.upper()
    inside = [
        i
        for i, option in enumerate(texts)
        if option and re.search(rf"(?<!\w){re.escape(option.strip().lower())}(?!\w)", plain)
    ]
    return letter_at(inside[0]) if len(inside) == 1 else None


def right_letter(doc: Document) -> str:
    """The right option's letter, given as a letter, a number or the text of a number."""
    answer = str(doc["answer"]).strip()
    return letter_at(int(answer)) if answer.isdigit() else answer


def results(doc: Document, responses: Sequence[str]) -> dict[str, float]:
    """`accuracy` of the chosen letter."""
    return {"accuracy": float(chosen(responses[0], options(doc)) == right_letter(doc))}


def first_rows(rows: Any) -> Any:
    """MMBench without the rotations that its file may hold."""
    return rows.filter(lambda doc: int(doc["index"]) < _TURNED)


def rotations(rows: Any) -> Any:
    """MMBench's questions, each once for every rotation of its options, as CircularEval asks them."""
    from datasets import Dataset

    plain = first_rows(rows)
    turned = [row for doc in plain for row in _turned(doc)]
    return Dataset.from_list(turned, features=plain.features)


def _turned(doc: Document) -> Iterator[dict[str, Any]]:
    texts, right = options(doc), ord(right_letter(doc)) - ord("A")
    for turn in range(len(texts)):
        moved = {letter_at((i - turn) % len(texts)): text for i, text in enumerate(texts)}
        answer = letter_at((right - turn) % len(texts))
        yield {**doc, **moved, "answer": answer, "index": int(doc["index"]) + turn * _TURNED}


def circular_results(doc: Document, responses: Sequence[str]) -> dict[str, Any]:
    """`circular_accuracy`: whether this rotation of a question was answered rightly."""
    right = chosen(responses[0], options(doc)) == right_letter(doc)
    return {"circular_accuracy": {"question": int(doc["index"]) % _TURNED, "right": right}}


@final
@dataclass(frozen=True, slots=True)
class Circular:
    """CircularEval (MMBench, Liu et al., 2023): the share of questions of which every rotation was answered rightly."""

    def __call__(self, items: Sequence[Document]) -> float:
        """The share, among all questions of which some rotation was asked."""
        return float(self._questions(items).mean())

    def stderr(self, items: Sequence[Document]) -> float | None:
        """Questions are independent; their rotations are not."""
        values = self._questions(items)
        return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None

    def _questions(self, items: Sequence[Document]) -> Any:
        found: dict[int, bool] = defaultdict(lambda: True)
        for item in items:
            found[item["question"]] &= bool(item["right"])
        return np.asarray(list(found.values()), dtype=float)


circular_accuracy = Circular()
