"""What stands in for packages that nearly every task imports and hardly uses: `loguru` and `requests`.

They are given only where the package is not installed. Of `requests` there is what asks a judge; everything else says
that the package is needed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from fusion_eval.errors import Fault, MissingDependencyError
from fusion_eval.harness.multimodal.peer.openai_names import CHAT, completion


class TaskLogger:
    """`loguru.logger` over the logger `lmms-eval` of the standard library."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("lmms-eval")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("debug", "info", "warning", "error", "critical", "exception"):
            return lambda message, *args, **kwargs: self._say(name, message, args, kwargs)
        if name in ("trace", "success"):
            return lambda message, *args, **kwargs: self._say("info", message, args, kwargs)
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self  # add, remove, bind, opt, enable: how a log looks is the run's matter

    def _say(self, level: str, message: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        text = str(message)
        if args or kwargs:
            try:
                text = text.format(*args, **kwargs)
            except (IndexError, KeyError, ValueError):
                text = " ".join([text, *map(str, args)])
        getattr(self._logger, level)("%s", text)


class ChatResponse:
    """A response of `requests` with a judge's answer."""

    status_code, ok, reason = 200, True, "OK"

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self._answer = completion(payload)

    @property
    def text(self) -> str:
        """The answer as JSON."""
        return json.dumps(self._answer)

    @property
    def content(self) -> bytes:
        """The answer as JSON."""
        return self.text.encode()

    def json(self, **_: Any) -> dict[str, Any]:
        """The answer."""
        return self._answer

    def raise_for_status(self) -> None:
        """Nothing: a judge that gives no answer has raised before."""


def chat_post(url: Any, data: Any = None, json: Any = None, **kwargs: Any) -> ChatResponse | None:
    """A judge's response to a post of chat messages, wherever it was to go; None where it is no such post."""
    payload = json if json is not None else _read(data)
    if isinstance(payload, Mapping) and "messages" in payload:
        return ChatResponse(payload)
    if CHAT in str(url) and isinstance(payload, Mapping):
        return ChatResponse({**payload, "messages": [{"role": "user", "content": str(payload.get("prompt", ""))}]})
    return None


def _read(data: Any) -> Any:
    if not isinstance(data, str | bytes):
        return data
    try:
        return json.loads(data)
    except ValueError:
        return None


def requests() -> Mapping[str, Any]:
    """The contents of `requests` where it is not installed."""
    errors = {"RequestException": type("RequestException", (OSError,), {})}
    for name in ("ConnectionError", "HTTPError", "JSONDecodeError", "ReadTimeout", "Timeout"):
        errors[name] = type(name, (errors["RequestException"],), {})

    def post(url: Any, data: Any = None, json: Any = None, **kwargs: Any) -> Any:
        response = chat_post(url, data, json)
        return _missing("requests.post")() if response is None else response

    names = {name: _missing(f"requests.{name}") for name in ("get", "put", "head", "request", "Session")}
    return {**names, **errors, "post": post, "exceptions": SimpleNamespace(**errors), "__version__": "2"}


def _missing(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise MissingDependencyError(
            Fault(what, "the package 'requests' is not installed", do="Run: pip install requests")
        )

    return refuse


def loguru() -> Mapping[str, Any]:
    """The contents of `loguru` where it is not installed."""
    return {"logger": TaskLogger()}
