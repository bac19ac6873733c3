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


_WRONG: Final = r"(?!\W* (?:is|was) (?:wrong|incorrect|false|not)\b)"
_GOES_ON: Final = r"(?!\s+(?!(?:because|since|as|for|is|which)\b)[a-z])"
_ARTICLE: Final = r"A\s+(?!(?:or|and)\b)[a-z]"
_AROUND: Final = "*`\"'<>[]{} "


def chosen(response: str, texts: Sequence[str]) -> str | None:
    """The letter that a response chooses among the options, or None where it chooses none or several.

    A letter alone or at the start, as in `B`, `(B)` or `B. a red circle`; after "answer is", "answer:" or "option"; the
    only letter in brackets or with a full stop; an option's text; the only capital that stands alone; else the only
    option whose text is in the response. An `A` before another word is an article.
    """
    if not texts:
        return None
    text = re.sub(r"\\boxed\{(?:\\text\{)?([^{}]*)\}+", r"\1", response).strip().strip(_AROUND)
    letter = f"[A-{letter_at(len(texts) - 1)}]"
    for pattern in (
        rf"\(?({letter})(?:\)|[.:,](?=\s|$)|(?=\s*$)|(?=\s*\n)|(?=\s+[^a-z\s])){_WRONG}",
        rf"(?:.*\b(?i:answer|option|choice)(?i: is| should be)?[:\s]*(?i:option |choice )?)[\"'(\[*]*"
        rf"({letter})\b[\"')\]*]*{_GOES_ON}{_WRONG}",
    ):
        found = re.match(pattern, text, re.DOTALL)
        if found:
            return found[1]
    marked = {a or b for a, b in re.findall(rf"\(({letter})\)|\b({letter})[.:](?=\s|$)", text)}
    if marked:
        return marked.pop() if len(marked) == 1 else None
    return _by_text(text, texts, letter)


def _by_text(text: str, texts: Sequence[str], letter: str) -> str | None:
    """The letter of the option whose text was said; a lower-case letter counts where it stands alone."""
    plain = text.rstrip(".").strip().lower()
    same = [index for index, option in enumerate(texts) if option.strip().rstrip(".").lower() == plain]
    if len(same) == 1:
        return letter_at(same[0])
    if len(plain) == 1 and re.fullmatch(letter, plain.upper()):
        return plain.upper()
    alone = set(re.findall(rf"(?<![\w'’-])(?!{_ARTICLE})({letter})(?![\w'’-]){_WRONG}", text))
    if alone:
        return alone.pop() if len(alone) == 1 else None
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
