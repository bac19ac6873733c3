"""Cutting generated text: stop words, code fences, the end of a function."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
_OPENING = {"{": 1, "}": -1}


def cut_at(text: str, words: Sequence[str]) -> str:
    """The text before the earliest occurrence of any of the words; empty words are ignored."""
    places = [place for word in words if word and (place := text.find(word)) >= 0]
    return text[: min(places)] if places else text


def completion_of(text: str, prompt: str) -> str:
    """What follows the prompt; a text that does not begin with it is all completion."""
    return text[len(prompt) :] if text.startswith(prompt) else text


def fenced(text: str) -> str:
    """The first fenced block, closed or not; the whole text where there is none."""
    found = _FENCE.search(text)
    return found.group(1) if found else text


def until_balanced(text: str, depth: int) -> str:
    """The text up to the bracket that closes `depth` open braces; braces in strings and comments are skipped.

    Args:
        text: what follows an open block.
        depth: how many braces are open before it.
    """
    place, mark = 0, ""
    while place < len(text):
        if mark:
            if text[place] == "\\" and mark in "\"'`":
                place += 1
            elif text.startswith(mark, place):
                place += len(mark) - 1
                mark = ""
        elif text.startswith(("//", "/*"), place):
            mark = "\n" if text[place + 1] == "/" else "*/"
            place += 1
        elif text[place] in '"`' or (text[place] == "'" and _is_quoted(text, place)):
            mark = text[place]
        else:
            depth += _OPENING.get(text[place], 0)
            if depth <= 0 and text[place] == "}":
                return text[: place + 1]
        place += 1
    return text


def _is_quoted(text: str, place: int) -> bool:
    """Whether an apostrophe opens a literal rather than a Rust lifetime or a digit separator."""
    end = text.find("'", place + 1)
    return 0 < end - place <= 12 and "\n" not in text[place:end]
