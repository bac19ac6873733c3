"""Recorded answers of judges: a file of JSON lines, by what was asked and how."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from fusion_eval.errors import Fault, OutputError

logger = logging.getLogger(__name__)


def key_of(messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """A digest of the exact messages and settings; the server's address is not part of it."""
    text = json.dumps([list(messages), dict(settings)], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@final
class AnswerCache:
    """Answers in a file that grows by a line each; a line that a killed run left half written is skipped.

    Args:
        path: the file; it is read when the first answer is looked for, and made when the first is put.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: dict[str, str] | None = None
        self._lock = threading.Lock()

    def get(self, key: str) -> str | None:
        """The answer of a key, or None."""
        with self._lock:
            return self._loaded().get(key)

    def put(self, key: str, messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], answer: str) -> None:
        """Record an answer with what was asked; data URLs are kept as digests.

        Raises:
            OutputError: the file cannot be written.
        """
        row = {"key": key, "settings": dict(settings), "messages": _without_data(list(messages)), "answer": answer}
        line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
        with self._lock:
            self._loaded()[key] = answer
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._append(line.encode("utf-8", "surrogatepass"))
            except OSError as error:
                fault = Fault("judge.cache", f"{self.path} cannot be written ({error.strerror})", "a file of answers")
                raise OutputError(fault) from error

    def _append(self, line: bytes) -> None:
        """One write, so that processes that share the file keep their lines whole."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, b"\n" + line if torn else line)
        finally:
            os.close(handle)

    def _loaded(self) -> dict[str, str]:
        if self._answers is None:
            self._answers = {}
            lines = self.path.read_bytes().splitlines() if self.path.is_file() else []
            for number, line in enumerate(lines, 1):
                self._take(number, line)
        return self._answers

    def _take(self, number: int, line: bytes) -> None:
        if not line.strip():
            return
        assert self._answers is not None
        try:
            row = json.loads(line.decode("utf-8", "surrogatepass"))
            self._answers[str(row["key"])] = str(row["answer"])
        except (ValueError, KeyError, TypeError):
            logger.warning("%s:%d is no recorded answer and is skipped", self.path, number)


def _without_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_data(item) for item in value]
    if isinstance(value, str) and value.startswith("data:"):
        return f"{value.partition(',')[0]},sha256:{hashlib.sha256(value.encode()).hexdigest()}"
    return value
