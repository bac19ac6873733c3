"""MMMU (Yue et al., 2024): questions with several pictures, multiple choice or open."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fusion_eval.harness.multimodal.library.choice import chosen
from fusion_eval.harness.multimodal.library.prompt import lettered, options

Document = Mapping[str, Any]
_PLACE: Final = re.compile(r"<image (\d+)>")
_LEAD: Final = re.compile(r"(?i)\b(?:answer|result|therefore|thus|so|final|is|are|be|equals?)\b[\s:=]*|=")
_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?|-?\.\d+")


def images(doc: Document) -> list[Any]:
    """The pictures that the question and its options name, in the order in which they are first named."""
    named = dict.fromkeys(_PLACE.findall(f"{doc['question']}\n{doc.get('options') or ''}"))
    found = [doc.get(f"image_{number}") for number in named]
    return [picture.convert("RGB") for picture in found if picture is not None]


def prompt(doc: Document, settings: Mapping[str, Any] | None = None) -> str:
    """The question with its options, and what to answer with."""
    given, text = settings or {}, str(doc["question"]).strip()
    if is_choice(doc):
        return f"{text}\n{lettered(options(doc))}\n\n{given.get('multiple_choice_prompt', '')}"
    return f"{text}\n\n{given.get('open_ended_prompt', '')}"


def is_choice(doc: Document) -> bool:
    """Whether the question has options."""
    return str(doc["question_type"]) == "multiple-choice"


def results(doc: Document, responses: Sequence[str]) -> dict[str, float]:
    """`accuracy`: of the letter chosen, or of the open answer. A response that chooses nothing is wrong."""
    said = responses[0]
    if is_choice(doc):
        return {"accuracy": float(chosen(said, options(doc)) == str(doc["answer"]).strip())}
    return {"accuracy": float(open_right(said, right_answers(doc)))}


def right_answers(doc: Document) -> list[str]:
    """The answers that count; a column may hold the text of a list."""
    text = str(doc["answer"])
    if text.startswith("["):
        return [str(answer) for answer in ast.literal_eval(text)]
    return [text]


def open_right(said: str, answers: Sequence[str]) -> bool:
    """Whether the end of a response says one of the answers: a number to two digits, or a text by its words."""
    tail = _conclusion(said)
    numbers = {_rounded(found) for found in _NUMBER.findall(tail)}
    words = _words(tail)
    for answer in answers:
        value = _rounded(answer) if _NUMBER.fullmatch(answer.strip()) else None
        if value is not None and value in numbers:
            return True
        if value is None and f" {_words(answer)} " in f" {words} ":
            return True
    return False


def _conclusion(said: str) -> str:
    """The last line or sentence, from its last word of conclusion on, if that leaves anything."""
    parts = [part for part in re.split(r"\n|\.\s", said.strip()) if part.strip()]
    last = parts[-1] if parts else ""
    after = _LEAD.split(last)[-1].strip()
    return after or last


def _rounded(text: str) -> float:
    return round(float(text.strip().replace(",", "")), 2)


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
