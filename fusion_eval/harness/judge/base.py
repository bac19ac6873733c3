"""What a judge is: `Judge.ask`, and `JudgeError` for one that gives no answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.errors import EvaluationError

Messages = str | Sequence[Mapping[str, Any]]
"""A question, or chat messages in the form of OpenAI's protocol."""


class JudgeError(EvaluationError):
    """A judge gave no usable answer: the document stays unscored and is counted, it is never given 0."""


class Judge(ABC):
    """A language model that is asked about answers."""

    name: str

    @abstractmethod
    def ask(self, messages: Messages, **options: Any) -> str:
        """The judge's answer.

        Args:
            messages: a question, or chat messages.
            options: of the generation, such as `temperature` and `max_tokens`.

        Raises:
            JudgeError: no usable answer.
        """
