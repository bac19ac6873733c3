"""OpenAI-compatible servers: requests that are tried again, limits that are kept, answers that are checked."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, Final

from fusion_eval.errors import EvaluationError, Fault

logger = logging.getLogger(__name__)
_RETRIED: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST: Final = 300.0


@dataclass(slots=True)
class Server:
    """Where a model is served, and how it may be asked.

    Args:
        url: up to and including the version, for instance `http://localhost:8000/v1`.
        model: the served name.
        chat: generate through chat completions.
        concurrency: requests in flight.
        rate: requests per second at most; None for no limit.
        retries: tries after a failure that may pass, waiting longer each time.
        timeout: seconds for one answer.
        key_name: environment variable with the key; none is sent where it is unset.
        options: further fields of every request.
    """

    url: str
    model: str
    chat: bool = False
    concurrency: int = 8
    rate: float | None = None
    retries: int = 5
    timeout: float = 600.0
    key_name: str = "OPENAI_API_KEY"
    options: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: float = 0.0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer.

        Raises:
            EvaluationError: refused, or no answer after all tries.
        """
        data = json.dumps({"model": self.model, **self.options, **body}).encode()
        said, do, asked = "", "Answers so far are kept; start the server and run again.", 0.0
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(max(asked, min(30.0, 0.25 * 2**attempt)))
            self._wait()
            try:
                with urllib.request.urlopen(self._request(path, data), timeout=self.timeout) as answer:
                    return _content(answer.read())
            except urllib.error.HTTPError as error:
                said = f"{error.code} {error.reason}: {error.read()[:300].decode(errors='replace')}"
                if error.code not in _RETRIED or (error.code == 500 and isinstance(body.get("prompt"), list)):
                    do = _advice(error.code, body)
                    break
                asked = seconds_of(error.headers.get("Retry-After"))
            except (OSError, HTTPException, ValueError) as error:
                said = f"{type(error).__name__}: {error}"
            logger.warning("%s%s: %s", self.url, path, said)
        raise EvaluationError(
            Fault(f"{self.url}{path}", f"no usable answer ({said})", "a running OpenAI-compatible server", do)
        )

    def _request(self, path: str, data: bytes) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(self.key_name)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return urllib.request.Request(self.url.rstrip("/") + path, data=data, headers=headers)

    def _wait(self) -> None:
        if self.rate is None:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + 1.0 / self.rate
        time.sleep(max(0.0, start - now))


def _advice(code: int, body: Mapping[str, Any]) -> str:
    """What to do about a refused request."""
    if code in (401, 403):
        return "Set the environment variable that server.key_name names."
    if code == 404:
        return "Look at server.url, which ends with the version (/v1), and at server.model."
    if isinstance(body.get("prompt"), list):
        return "Leave tokenizer out where the server takes no token ids."
    return "Look at the server's own words, and at server.options and gen_kwargs."


def _content(data: bytes) -> dict[str, Any]:
    """The object that a server sent.

    Raises:
        ValueError: not JSON, no object, or an error that came as a success.
    """
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"the answer is no object: {data[:100]!r}")
    if value.get("error") and "choices" not in value:
        raise ValueError(f"the server reports {json.dumps(value['error'])[:300]}")
    return value


def seconds_of(wait: str | None) -> float:
    """What a server's `Retry-After` asks for (seconds or a date), at most five minutes; 0 where it says nothing."""
    if not wait:
        return 0.0
    try:
        seconds = float(wait)
    except ValueError:
        try:
            date = parsedate_to_datetime(wait)
        except ValueError:
            return 0.0
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), _LONGEST)


def first_choice(answer: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The first of an answer's choices.

    Raises:
        EvaluationError: there are none.
    """
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    said = f"answers without choices: {json.dumps(answer)[:200]}"
    raise EvaluationError(Fault(where, said, "an answer of an OpenAI-compatible server"))
