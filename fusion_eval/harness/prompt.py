"""Prompts: turns of a conversation, joined as plain text or by a chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusion_eval.errors import DataError, Fault

ChatTemplate = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message.

    Args:
        role: system, user or assistant.
        content: what a chat template sees.
        delimiter: what follows the content in plain text.
    """

    role: str
    content: str
    delimiter: str = ""

    @property
    def text(self) -> str:
        """Content and delimiter."""
        return self.content + self.delimiter

    def as_message(self) -> dict[str, str]:
        """The message of a chat."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Style:
    """Delimiters of a turn: between question and answer, and after the answer."""

    target: str = " "
    shot: str = ""


def joined(left: str | None, right: str | None, delimiter: str) -> str:
    """Both parts with the delimiter between them, unless one is empty or white space meets there anyway."""
    if not left or not right:
        return left or right or ""
    return left + right if touches_space(left, right) else left + delimiter + right


def touches_space(left: str, right: str) -> bool:
    """Whether white space stands at the seam of two non-empty strings."""
    return left[-1].isspace() or right[0].isspace()


def question_and_answer(
    question: Any, style: Style, answer: Any = None, choices: Sequence[str] | None = None, prefix: str | None = None
) -> list[Turn]:
    """The user's turn and, where there is an answer or a prefix of one, the assistant's.

    Args:
        question: the text.
        style: delimiters.
        answer: a string, an index into `choices`, or a list whose first element counts; None or "" for none.
        choices: the choices that an index answer points to.
        prefix: the beginning of the assistant's answer.

    Raises:
        DataError: a question or an answer that is not text.
    """
    if not isinstance(question, str):
        raise DataError(Fault("doc_to_text", f"gives {question!r} ({type(question).__name__})", "a string"))
    answered = answer is not None and answer != ""
    wants_delimiter = answered if not prefix else question != "" and not touches_space(question, prefix)
    turns = [Turn("user", question, style.target if wants_delimiter else "")]
    if answered:
        turns.append(Turn("assistant", joined(prefix, answer_text(answer, choices), " "), style.shot))
    elif prefix:
        turns.append(Turn("assistant", prefix))
    return turns


def answer_text(answer: Any, choices: Sequence[str] | None) -> str:
    """The text of an answer; of several, the first."""
    if isinstance(answer, list):
        return answer_text(answer[0] if answer else "", choices)
    if choices and isinstance(answer, int):
        answer = choices[answer]
    if not isinstance(answer, str):
        raise DataError(
            Fault("doc_to_target", f"gives {answer!r} ({type(answer).__name__}) as the answer of a shot",
                  "a string, or a number where doc_to_choice is set", 'Write doc_to_target: "{{column}}".')
        )  # fmt: skip
    return answer


def as_text(turns: Sequence[Turn]) -> str:
    """Plain text: every content with its delimiter."""
    return "".join(turn.text for turn in turns)


def as_chat(turns: Sequence[Turn], multiturn: bool) -> list[dict[str, str]]:
    """Messages of a chat; with `multiturn` off, all shots and the question become one user message."""
    if multiturn:
        return [turn.as_message() for turn in turns]
    system = [turn for turn in turns[:1] if turn.role == "system"]
    rest = list(turns[len(system) :])
    tail = [rest.pop()] if rest and rest[-1].role == "assistant" else []
    if rest:
        rest[-1] = replace(rest[-1], delimiter="")
    return [turn.as_message() for turn in (*system, Turn("user", as_text(rest)), *tail)]


def render_prompt(turns: Sequence[Turn], chat: ChatTemplate | None, multiturn: bool, prefix: str | None) -> str:
    """The prompt: plain text, or the chat template's output.

    Args:
        turns: all turns, the last one unanswered.
        chat: `chat(messages, add_generation_prompt=bool)`; None for plain text.
        multiturn: shots as separate messages.
        prefix: the beginning of the answer, which the template continues.
    """
    if chat is None:
        return as_text(turns)
    return chat(as_chat(turns, multiturn), add_generation_prompt=not prefix)
