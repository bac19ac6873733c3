from __future__ import annotations

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.template import render, variables


def test_rendering_is_jinjas() -> None:
    assert render("{{a.strip()}}|{{b[1]}}\n", {"a": " x ", "b": [1, 2]}) == "x|2\n"
    assert render("{{ s | regex_replace('a+', 'b') }}", {"s": "caat"}) == "cbt"
    assert render("no braces", {}) == "no braces"
    assert render("a\r\nb", {}) == "a\nb"
    assert render("{{x}}", {"x": "<&>"}) == "<&>"


def test_a_missing_column_is_told_with_the_columns_there_are() -> None:
    with pytest.raises(DataError, match=r"'question' is undefined; expected only these columns: answer, q"):
        render("{{question}}", {"q": 1, "answer": 2})


def test_a_broken_template_is_told_with_its_line() -> None:
    with pytest.raises(DataError, match="template line 2"):
        render("ok\n{% if x %}", {"x": 1})


def test_variables_are_those_of_the_document() -> None:
    text = "{% set p = 1 %}{% for c in choices %}{{loop.index}}{{c}}{{p}}{% endfor %}{{range(n)}}"
    assert variables(text) == {"choices", "n"}
