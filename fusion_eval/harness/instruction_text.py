"""Sentences, tokens and the language of a text, as verifiers of instructions count them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from fusion_eval.errors import missing_dependency

_ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "sr",
        "jr",
        "st",
        "vs",
        "etc",
        "e.g",
        "i.e",
        "u.s",
        "u.k",
        "a.m",
        "p.m",
        "inc",
        "ltd",
        "co",
        "corp",
        "no",
        "fig",
        "vol",
        "dept",
        "est",
        "approx",
        "gen",
        "col",
        "sgt",
        "capt",
        "lt",
        "jan",
        "feb",
        "mar",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "sept",
        "oct",
        "nov",
        "dec",
        "mt",
        "ave",
        "rev",
    ]
)


def sentences(text: str) -> list[str]:
    """The sentences of an English text, by the Punkt rules of nltk.

    Where nltk's data "punkt_tab" is installed, its English model counts; otherwise its rules with common abbreviations.
    """
    return list(_splitter()(text))


def tokens(text: str) -> list[str]:
    """Words and punctuation, sentence by sentence, by the Treebank rules of nltk."""
    tokenizer = _nltk("tokenize.destructive").NLTKWordTokenizer()
    return [token for sentence in sentences(text) for token in tokenizer.tokenize(sentence)]


@functools.cache
def _splitter() -> Callable[[str], list[str]]:
    punkt: Any = _nltk("tokenize.punkt")
    try:
        return punkt.PunktTokenizer("english").tokenize  # type: ignore[no-any-return]
    except (LookupError, AttributeError):
        parameters = punkt.PunktParameters()
        parameters.abbrev_types = set(_ABBREVIATIONS)
        return punkt.PunktSentenceTokenizer(parameters).tokenize  # type: ignore[no-any-return]


def _nltk(part: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"nltk.{part}")
    except ImportError as error:
        raise missing_dependency("nltk", "language", "counting sentences") from error


def language(text: str) -> str | None:
    """The language that a text is written in, as an ISO 639-1 code; None where none can be told."""
    if not re.search(r"\w", text):
        return None
    try:
        import langdetect
    except ImportError as error:
        raise missing_dependency("langdetect", "language", "telling the language of a response") from error
    langdetect.DetectorFactory.seed = 0  # the package draws at random otherwise
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None
