"""A judge over anything that answers messages, with recorded answers before it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, final

from fusion_eval.errors import Fault, FusionEvalError
from fusion_eval.harness.judge.backends import Backend
from fusion_eval.harness.judge.base import Judge, JudgeError, Messages, chat_messages
from fusion_eval.harness.judge.cache import AnswerCache, key_of

GIVEN_UP = 5
"""Failures in a row after which a judge is not asked any more, so that a dead server does not cost hours."""


@final
class AskedJudge(Judge):
    """A judge whose answers are recorded where a cache is given; equal questions are asked once.

    Args:
        name: for messages.
        backend: what answers.
        model: asked in place of the model that a task names.
        options: laid over those that a task asks with.
        cache: recorded answers.
        mode: ask, replay or refresh.
        concurrency: questions asked at once by `ask_all`.
    """

    def __init__(
        self, name: str, backend: Backend, *, model: str | None = None, options: Mapping[str, Any] | None = None,
        cache: AnswerCache | None = None, mode: str = "ask", concurrency: int = 1,
    ) -> None:  # fmt: skip
        self.name, self.concurrency = name, concurrency
        self.counts = {"asked": 0, "recorded": 0, "failed": 0}
        self._backend, self._model, self._options = backend, model, dict(options or {})
        self._cache, self._mode = cache, mode
        self._anew: set[str] = set()
        self._in_a_row = 0
        self._lock = threading.Lock()

    def ask(self, messages: Messages, **options: Any) -> str:
        """See `Judge`."""
        said = chat_messages(messages)
        settings = {key: value for key, value in {**options, **self._options}.items() if value is not None}
        if self._model is not None:
            settings["model"] = self._model
        key = key_of(said, settings)
        recorded = self._recorded(key)
        if recorded is not None:
            return recorded
        return self._answer(key, said, settings)

    def _recorded(self, key: str) -> str | None:
        if self._cache is None or (self._mode == "refresh" and key not in self._anew):
            return None
        answer = self._cache.get(key)
        if answer is not None:
            self._count("recorded")
        elif self._mode == "replay":
            self._count("failed")
            raise JudgeError(
                Fault(f"judge {self.name}", f"no answer to this question is recorded in {self._cache.path}",
                      "one recorded under equal messages and settings", "Run once with judge.mode=ask.")
            )  # fmt: skip
        return answer

    def _answer(self, key: str, messages: list[dict[str, Any]], settings: dict[str, Any]) -> str:
        if self._in_a_row >= GIVEN_UP:
            self._count("failed")
            found = f"gave no answer {GIVEN_UP} times in a row and is not asked any more"
            raise JudgeError(Fault(f"judge {self.name}", found, do="Put it right and run again."))
        try:
            answer = self._backend(messages, settings)
        except Exception as error:
            self._count("failed")
            self._in_a_row += 1
            if isinstance(error, JudgeError):
                raise
            faults = error.faults if isinstance(error, FusionEvalError) else [f"{type(error).__name__}: {error}"]
            raise JudgeError(*faults) from error
        if not isinstance(answer, str) or not answer.strip():
            self._count("failed")
            raise JudgeError(Fault(f"judge {self.name}", f"answered {answer!r}", "a text"))
        self._count("asked")
        self._in_a_row = 0
        if self._cache is not None:
            self._cache.put(key, messages, settings, answer)
            self._anew.add(key)
        return answer

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1
