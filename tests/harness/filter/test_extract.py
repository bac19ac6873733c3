from __future__ import annotations

from typing import Any

import pytest

from tests.harness.filter.test_pipeline import run, run_pipeline


@pytest.mark.parametrize(
    ("options", "response", "found"),
    [
        ({}, "so #### 1,234.", "1,234."),
        ({}, "no number", "[invalid]"),
        ({"regex_pattern": "[0-9]+", "group_select": -1}, "1 and 22", "22"),
        ({"regex_pattern": "(a)|(b)"}, "b a", "b"),
        ({"regex_pattern": "(a?)x(b?)"}, "x", "[invalid]"),
        ({"regex_pattern": "[0-9]+", "group_select": 3}, "1 2", "[invalid]"),
        ({"regex_pattern": r"Answer: (\w+), (\w+)", "group": 2}, "Answer: yes, sir", "sir"),
        ({"regex_pattern": "Answer: (.*)", "group": 1}, "Answer: 7 ", "7"),
        ({}, None, "[invalid]"),
        ({"fallback": " none "}, "x", " none "),
    ],
)
def test_regex(options: dict[str, Any], response: Any, found: str) -> None:
    assert run([[response]], ("regex", options), ("take_first", {})) == [found]


def test_responses_that_match_nothing_are_counted() -> None:
    assert run_pipeline([["a", "1"], ["b", "c"]], ("regex", {"regex_pattern": "[0-9]"}))[1].fallbacks == 3


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ("I say (C)", "(C)"), ("surely Guilty of Romance!", "(B)"), ("it is guilty", "(A)"), ("So: B", "(B)"),
        ("nothing", "[invalid]"), (" : Z", "[invalid]"),
    ],
)  # fmt: skip
def test_multi_choice(response: str, found: str) -> None:
    doc = {"choices": ["Guilty", "Guilty of Romance", "none of it"]}
    options = {"regex_pattern": r"(\([A-Z]\))", "ignore_case": True, "ignore_punctuation": True}
    assert run([[response]], ("multi_choice_regex", options), ("take_first", {}), docs=[doc]) == [found]


def test_tags_and_entities() -> None:
    assert run([["[('a', 'NOUN'), ('b', 'VERB')]", "?"]], ("regex_pos", {})) == [[["NOUN", "VERB"], ["invalid"]]]
    text = "Person: Ann, Bo $$ location: none\ndate: today"
    assert run([[text]], ("format_span", {})) == [["per: ann $ per: bo $ date: today"]]
