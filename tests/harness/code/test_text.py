"""Cutting generations: the earliest stop word, never inside the prompt, the same for any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.harness.code.humaneval import HumanEval
from fusion_eval.harness.code.text import completion_of, cut_at, fenced, until_balanced

WORDS = st.lists(st.text(st.sampled_from("ab\n#"), min_size=1, max_size=3), max_size=4)
TEXTS = st.text(st.sampled_from("ab\n# "), max_size=40)


@given(TEXTS, WORDS)
def test_the_cut_is_before_the_earliest_word(text: str, words: list[str]) -> None:
    found = cut_at(text, words)
    assert text.startswith(found)
    assert not any(word in found for word in words)
    if found != text:
        assert any(text.startswith(word, len(found)) for word in words)


@given(TEXTS, WORDS)
def test_the_order_of_words_is_irrelevant_and_cutting_twice_changes_nothing(text: str, words: list[str]) -> None:
    assert cut_at(text, words) == cut_at(text, words[::-1]) == cut_at(cut_at(text, words), words)


@pytest.mark.parametrize("tail", ["", "\ndef other():\n", "\nclass A:", "\n#", "\nprint(1)", "\n```", "\nif x:"])
def test_the_prompt_is_never_cut(code_data: Path, tail: str) -> None:
    task = HumanEval()
    for place, doc in enumerate(task.get_dataset()):
        prompt = task.get_prompt(doc)
        assert task.postprocess_generation(f"{prompt}\n    return 1{tail}", place) == f"{prompt}\n    return 1"
        assert task.postprocess_generation(f"\n    return 1{tail}", place) == f"{prompt}\n    return 1"


def test_a_text_without_the_prompt_is_all_completion() -> None:
    assert completion_of("def f(): 1", "def f():") == " 1"
    assert completion_of("x = 1", "def f():") == "x = 1"


def test_fences() -> None:
    assert fenced("Sure:\n```python\nx = 1\n```\nbye") == "x = 1"
    assert fenced("```\nx = 1") == "x = 1"
    assert fenced("x = 1") == "x = 1"


def test_braces_in_strings_and_comments_do_not_count() -> None:
    body = "  s = \"}\"; // }\n  /* } */ c = '}'; if (x) { y(); }\n}"
    assert until_balanced(body + "\nint main() {}", 1) == body
    assert until_balanced("fn f<'a>(x: &'a str) { x } }", 1) == "fn f<'a>(x: &'a str) { x } }"
    assert until_balanced("  a();\n  }\n}\nrest", 2) == "  a();\n  }\n}"
