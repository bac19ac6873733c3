"""Pictures and prompts of the library's tasks."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
Settings = Mapping[str, Any] | None


def image(doc: Document) -> list[Any]:
    """The document's picture in RGB; none where it has none."""
    return [] if doc.get("image") is None else [doc["image"].convert("RGB")]


def question(doc: Document, settings: Settings = None) -> str:
    """The question between `pre_prompt` and `post_prompt`."""
    return _around(str(doc["question"]).strip(), settings)


def question_with_text(doc: Document, settings: Settings = None) -> str:
    """The question, after it the words that a text reader found in the picture where `ocr` is true."""
    text = str(doc["question"]).strip()
    if (settings or {}).get("ocr") and doc.get("ocr_tokens"):
        text += f"\nReference OCR token: {', '.join(doc['ocr_tokens'])}"
    return _around(text, settings)


def yes_no_question(doc: Document, settings: Settings = None) -> str:
    """The question without its own request for yes or no."""
    return _around(re.sub(r"\s*Please answer yes or no\.\s*$", "", str(doc["question"])).strip(), settings)


def with_options(doc: Document, settings: Settings = None) -> str:
    """The hint, the question and lettered options."""
    hint = str(doc.get("hint") or "").strip()
    hint = "" if hint.lower() in ("", "nan") else f"{(settings or {}).get('hint', 'Context: ')}{hint}\n"
    return _around(f"{hint}{str(doc['question']).strip()}\n{lettered(options(doc))}", settings)


def options(doc: Document) -> list[str]:
    """The options of a document in whichever form its data set has them.

    A list `options` or `choices`, the text of such a list, or columns A, B, C, ... of which unused ones are empty.
    """
    given = doc.get("options", doc.get("choices"))
    if isinstance(given, str):
        given = ast.literal_eval(given)
    if given is not None:
        return [str(option) for option in given]
    columns = (doc.get(letter) for letter in "ABCDEFGHI")
    return [str(text) for text in columns if text is not None and str(text) not in ("", "nan")]


def lettered(texts: Sequence[str]) -> str:
    """`A. first`, `B. second`, one a line."""
    return "\n".join(f"{letter_at(index)}. {text}" for index, text in enumerate(texts))


def letter_at(index: int) -> str:
    """A for 0, B for 1."""
    return chr(ord("A") + index)


def _around(text: str, settings: Settings) -> str:
    given = settings or {}
    return f"{given.get('pre_prompt', '')}{text}{given.get('post_prompt', '')}"
