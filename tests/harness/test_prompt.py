from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.errors import DataError
from fusion_eval.harness.prompt import Style, Turn, as_chat, as_text, joined, question_and_answer


@given(st.text(max_size=5), st.text(max_size=5))
def test_joining_never_loses_text_and_adds_at_most_the_delimiter(left: str, right: str) -> None:
    whole = joined(left, right, "\n\n")
    assert whole in (left + right, left + "\n\n" + right)
    assert ("\n\n" + right in whole) or not left or not right or left[-1].isspace() or right[0].isspace()


@pytest.mark.parametrize(
    ("question", "answer", "prefix", "text"),
    [
        ("Q:", "yes", None, "Q: yes|"), ("Q:", "", None, "Q:"), ("Q:", None, None, "Q:"),
        ("Q:", "a", "The", "Q: The a|"),
        ("Q: ", "a", "The", "Q: The a|"), ("", "a", "The", "The a|"), ("Q:", "", "The", "Q: The"),
        ("Q:", 1, None, "Q: y|"),
        ("Q:", ["p", "q"], None, "Q: p|"), ("Q:", [1, 0], None, "Q: y|"),
    ],
)  # fmt: skip
def test_turns_as_text(question: str, answer: object, prefix: str | None, text: str) -> None:
    assert as_text(question_and_answer(question, Style(" ", "|"), answer, ["x", "y"], prefix)) == text


def test_answers_that_are_no_text_are_refused() -> None:
    with pytest.raises(DataError, match="doc_to_target"):
        question_and_answer("Q", Style(), 3)
    with pytest.raises(DataError, match="doc_to_text"):
        question_and_answer(3, Style())


def test_one_user_message_keeps_the_delimiters_between_shots() -> None:
    turns = [
        Turn("system", "S"), Turn("user", "q1", " "), Turn("assistant", "a1", "\n\n"), Turn("user", "q2", " "),
        Turn("assistant", "The"),
    ]  # fmt: skip
    assert as_chat(turns, multiturn=False) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "q1 a1\n\nq2"},
        {"role": "assistant", "content": "The"},
    ]
    assert [m["content"] for m in as_chat(turns, multiturn=True)] == ["S", "q1", "a1", "q2", "The"]
