"""What a judge is: `Judge.ask`, and `JudgeError` for one that gives no answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fusion_eval.errors import EvaluationError

Messages = str | Sequence[Mapping[str, Any]]
"""A question, or chat messages in the form of OpenAI's protocol."""


class JudgeError(EvaluationError):
    """A judge gave no usable answer: the document stays unscored and is counted, it is never given 0."""


class Judge(ABC):
    """A language model that is asked about answers."""

    name: str
    concurrency: int = 1

    @abstractmethod
    def ask(self, messages: Messages, **options: Any) -> str:
        """The judge's answer, never empty.

        Args:
            messages: a question, or chat messages.
            options: of the generation, such as `temperature` and `max_tokens`; `model` is what a task would ask.

        Raises:
            JudgeError: no usable answer.
        """

    def ask_all(self, questions: Sequence[Messages], **options: Any) -> list[str | JudgeError]:
        """Answers in order, several asked at once; an error where there is none."""

        def one(messages: Messages) -> str | JudgeError:
            try:
                return self.ask(messages, **options)
            except JudgeError as error:
                return error

        with ThreadPoolExecutor(max(1, self.concurrency)) as pool:
            return list(pool.map(one, questions))


def chat_messages(messages: Messages) -> list[dict[str, Any]]:
    """Messages in the form of OpenAI's protocol; a question becomes one of the user's."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dict(message) for message in messages]
