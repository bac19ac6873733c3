from __future__ import annotations

from fusion_eval.harness.multimodal.peer.filters import (
    ExtendedRegexFilter,
    MapFilter,
    SimpleMultiChoiceRegexFilter,
    StripThinkingFilter,
)


def test_filters_of_tasks_find_what_they_are_derived_from() -> None:
    base = ExtendedRegexFilter(r"\((\w)\)", ignore_case=True, ignore_punctuation=True, regexes_to_ignore=["x"])
    assert base.filter_ignores("AxB, c") == "ab c"
    assert base.find_match(base.regex, "(A) or (B)", {"A": "1"}) == "1"
    assert base.find_match(base.regex, "none") == []
    words = MapFilter({"one": "1"}, default_value="?")
    assert words.mapping_dict == {"one": "1"}
    assert words.apply([["one", "two"]], [{}]) == [["1", "?"]]


def test_thoughts_and_letters() -> None:
    assert StripThinkingFilter().apply([["<think>a</think>b"]], [{}]) == [["b"]]
    doc = {"question": "Which?\nA. red car\nB. blue car"}
    assert list(SimpleMultiChoiceRegexFilter().apply([["the blue car!"], ["green"]], [doc, doc])) == ["B", "green"]
