"""Filters that extract an answer from a response: by pattern, by choice, by tag."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.filter.base import EachFilter, Filter, Responses, register_filter

NUMBER = r"#### (\-?[0-9\.\,]+)"
INVALID = "[invalid]"


def pick(found: Sequence[Any], select: int, group: int | None = None) -> str | None:
    """One of several matches, stripped; of several groups the first that is not empty; None where all are."""
    if not -len(found) <= select < len(found):
        return None
    match = found[select]
    if isinstance(match, tuple):
        if group:
            return str(match[group - 1]).strip()
        match = next((part for part in match if part), None)
    return None if match is None else str(match).strip()


@register_filter("regex")
class RegexFilter(Filter):
    """The part of a response that matches a pattern.

    Args:
        regex_pattern: the pattern.
        group_select: which of all matches (-1: the last).
        fallback: the answer where nothing matches.
        group: which group of the match, from 1; None for the first that is not empty.
    """

    elementwise = True

    def __init__(
        self, regex_pattern: str = NUMBER, group_select: int = 0, fallback: Any = INVALID, group: int | None = None
    ) -> None:
        self.regex_pattern = regex_pattern
        self.regex = re.compile(regex_pattern)
        self.group_select = group_select
        self.fallback = fallback
        self.group = group
        self.unmatched = 0

    def apply(self, resps: Responses, docs: Sequence[Any]) -> Iterable[Any]:
        """Each response replaced by its match or the fallback."""
        return [[self._extract(response) for response in repeats] for repeats in resps]

    def _extract(self, response: Any) -> Any:
        found = self.regex.findall(response if isinstance(response, str) else "")
        match = pick(found, self.group_select, self.group) if found else None
        if match is None:
            self.unmatched += 1
            return self.fallback.strip() if found and isinstance(self.fallback, str) else self.fallback
        return match


@functools.cache
def punctuation() -> dict[int, None]:
    """Every mark of punctuation, for `str.translate`."""
    return dict.fromkeys(i for i in range(sys.maxunicode) if unicodedata.category(chr(i)).startswith("P"))


@register_filter("multi_choice_regex")
class MultiChoiceRegexFilter(RegexFilter):
    """The letter "(A)" of a choice: by pattern, else by the choice's text, else by a letter after a colon.

    Args:
        ignore_case: compare texts of choices in lower case.
        ignore_punctuation: compare them without punctuation.
        regexes_to_ignore: patterns removed from both sides first.
    """

    def __init__(
        self, regex_pattern: str = NUMBER, group_select: int = 0, fallback: str = INVALID, ignore_case: bool = False,
        ignore_punctuation: bool = False, regexes_to_ignore: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(regex_pattern, group_select, fallback)
        self.ignore_case = ignore_case
        self.ignore_punctuation = ignore_punctuation
        self.regexes_to_ignore = regexes_to_ignore

    def apply(self, resps: Responses, docs: Sequence[Any]) -> Iterable[Any]:
        """Each response replaced by a letter in parentheses or the fallback."""
        return [
            [self._choose(response, *patterns) for response in repeats]
            for repeats, patterns in zip(resps, map(self._patterns, docs), strict=True)
        ]

    def _patterns(self, doc: Mapping[str, Any]) -> tuple[re.Pattern[str], dict[str, str], re.Pattern[str]]:
        if "choices" not in doc:
            raise DataError(Fault("multi_choice_regex", "the document has no 'choices'", "a list of choices"))
        letters: dict[str, str] = {}
        texts, names = [], []
        for position, choice in enumerate(doc["choices"]):
            letter = chr(ord("A") + position)
            text = self._plain(choice.strip())
            letters[text] = f"({letter})"
            texts.append(re.escape(text))
            names.append(letter)
        by_text = re.compile("|".join(sorted(texts, key=len, reverse=True)))
        return by_text, letters, re.compile(rf":[\s]*({'|'.join(names)})")

    def _choose(
        self, response: Any, by_text: re.Pattern[str], letters: Mapping[str, str], colon: re.Pattern[str]
    ) -> Any:
        response = response if isinstance(response, str) else ""
        match = self._found(self.regex, response)
        if not match:
            text = self._found(by_text, self._plain(response))
            match = letters.get(text, text) if text else ""
        if not match:
            letter = self._found(colon, response)
            match = letter and f"({letter})"
        self.unmatched += not match
        return match or self.fallback

    def _found(self, regex: re.Pattern[str], response: str) -> str:
        found = regex.findall(response)
        return (pick(found, self.group_select) or "") if found else ""

    def _plain(self, text: str) -> str:
        for pattern in self.regexes_to_ignore or ():
            text = re.sub(pattern, "", text)
        text = text.lower() if self.ignore_case else text
        return text.translate(punctuation()) if self.ignore_punctuation else text


@register_filter("regex_pos")
class PartOfSpeechFilter(EachFilter):
    """The tags of a response written as a list of `('word', 'TAG')` pairs."""

    def __init__(self, regex_pattern: str = r"\['(.*?)'\]", group_select: int = 0, fallback: Any = None) -> None:
        self.regex_pattern = regex_pattern
        self.fallback = ["invalid"] if fallback is None else fallback
        self.unmatched = 0

    def one(self, response: Any) -> Any:
        """The list of tags."""
        pairs = re.findall(r"\('([^']*)', '([^']*)'\)", response) if isinstance(response, str) else response
        tags = [tag for _, tag in pairs]
        self.unmatched += not tags
        return tags or self.fallback


_ENTITY_LABELS = {
    "person": "PER", "location": "LOC", "organization": "ORG", "counties": "LOC", "places": "LOC", "people": "PER",
    "persons": "PER", "company": "ORG", "country": "LOC", "continent": "LOC", "time": "DATE", "date": "DATE",
    "per": "PER", "loc": "LOC", "org": "ORG",
}  # fmt: skip


@register_filter("format_span")
class SpanFilter(EachFilter):
    """Named entities as `per: x $ loc: y`, without those called "none"."""

    def one(self, response: Any) -> Any:
        """The normalised list of entities."""
        text = str(response).lower()
        for word, label in _ENTITY_LABELS.items():
            text = re.sub(rf"\b{word}\s*:", f"{label}:", text)
        text = text.replace("$$", "$").rstrip("$").replace("\n", "$").strip()
        entities = (
            (label.lower(), entity.strip())
            for label, values in re.findall(r"\b(PER|LOC|ORG|DATE):\s*([^$]+)", text)
            for entity in values.split(",")
        )
        return " $ ".join(f"{label}: {entity}" for label, entity in entities if entity.lower() != "none")
