"""Filters of `lmms_eval` that language tasks do not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusion_eval.harness.filter.base import EachFilter, Responses
from fusion_eval.harness.filter.extract import INVALID, NUMBER, RegexFilter, pick, punctuation
from fusion_eval.harness.filter.simple import MapValues
from fusion_eval.harness.multimodal.peer.text import TAG_PAIRS, strip_reasoning_tags

_CHOICE = re.compile(r"\b([A-Z])\.\s+([^\n]*)")


class StripThinkingFilter(EachFilter):
    """Leaves out what stands between tags of reasoning."""

    def __init__(self, tag_pairs: Sequence[Sequence[str]] | None = None) -> None:
        self.tag_pairs = tag_pairs or TAG_PAIRS

    def one(self, response: Any) -> Any:
        """The response without its thoughts."""
        return strip_reasoning_tags(response, self.tag_pairs) if isinstance(response, str) else response


class MapFilter(MapValues):
    """Each response looked up in a mapping; filters of tasks that are derived from it read its attributes."""

    def __init__(self, mapping_dict: Mapping[str, Any] | None = None, default_value: Any = None) -> None:
        super().__init__(mapping_dict, default_value)
        self.mapping_dict, self.default_value = self.mapping, default_value


class ExtendedRegexFilter(RegexFilter):
    """What filters of tasks are derived from: a pattern, and texts compared without case or punctuation.

    Args:
        ignore_case: compare texts in lower case.
        ignore_punctuation: compare them without punctuation.
        regexes_to_ignore: patterns removed first.
    """

    elementwise = False

    def __init__(
        self, regex_pattern: str = NUMBER, group_select: int = 0, fallback: str = INVALID, ignore_case: bool = False,
        ignore_punctuation: bool = False, regexes_to_ignore: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(regex_pattern, group_select, fallback)
        self.ignore_case, self.ignore_punctuation = ignore_case, ignore_punctuation
        self.regexes_to_ignore = regexes_to_ignore

    @property
    def punct_tbl(self) -> dict[int, None]:
        """Every mark of punctuation, for `str.translate`."""
        return punctuation()

    def filter_ignores(self, st: str) -> str:
        """The text as it is compared."""
        for pattern in self.regexes_to_ignore or ():
            st = re.sub(pattern, "", st)
        st = st.lower() if self.ignore_case else st
        return st.translate(self.punct_tbl) if self.ignore_punctuation else st

    def find_match(self, regex: re.Pattern[str], resp: str, convert_dict: Mapping[str, str] | None = None) -> Any:
        """The match of a pattern, as the mapping has it; an empty list where there is none."""
        found = regex.findall(resp)
        match = pick(found, self.group_select) if found else None
        return [] if match is None else (convert_dict or {}).get(match, match)


class SimpleMultiChoiceRegexFilter(ExtendedRegexFilter):
    """The letter of the choice whose text a response holds; choices stand in the question as "A. text"."""

    def apply(self, resps: Responses, docs: Sequence[Any]) -> Iterable[Any]:
        """The first response of each request as a letter, or without punctuation where it holds no choice."""
        return [self._letter(next(iter(repeats)), doc) for repeats, doc in zip(resps, docs, strict=True)]

    def _letter(self, response: str, doc: Mapping[str, Any]) -> str:
        texts = [text.strip() for _, text in _CHOICE.findall(doc["question"])]
        letters = {text: chr(ord("A") + place) for place, text in enumerate(texts)}
        plain = re.sub(r"[^\w\s]", "", response).strip()
        found = re.search("|".join(map(re.escape, texts)), plain)
        return letters.get(found[0], plain) if found else plain
