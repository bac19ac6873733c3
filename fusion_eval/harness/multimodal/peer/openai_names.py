"""`openai` as tasks see it: clients that need no key to be made, and that ask the judge of the run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from fusion_eval.errors import Fault
from fusion_eval.harness.judge.active import ask_for_task, silence
from fusion_eval.harness.judge.base import JudgeError

CHAT: Final = "/chat/completions"


def completion(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What a server would answer to a chat completion, as plain data; `n` texts where so many are asked for."""
    options = {key: value for key, value in payload.items() if key not in ("messages", "n", "stream", "timeout")}
    count = int(payload.get("n") or 1)
    seeds = [{}] if count == 1 else [{"seed": number} for number in range(count)]
    texts = [ask_for_task(payload.get("messages") or [], **{**options, **seed}) for seed in seeds]
    choices = [
        {"index": place, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        for place, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    model = str(payload.get("model") or "")
    return {"id": "judge", "object": "chat.completion", "model": model, "choices": choices, "usage": usage}


class Answer(SimpleNamespace):
    """Plain data whose keys are attributes, as objects of `openai` are."""

    def model_dump(self) -> dict[str, Any]:
        """The data."""
        return dict(copy.deepcopy(self._plain))

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


def answered(value: Any) -> Any:
    """Plain data as objects."""
    if isinstance(value, Mapping):
        return Answer(**{str(key): answered(item) for key, item in value.items()}, _plain=value)
    return [answered(item) for item in value] if isinstance(value, list) else value


class _Completions:
    def create(self, **payload: Any) -> Any:
        return answered(completion(payload))


class _AsyncCompletions:
    async def create(self, **payload: Any) -> Any:
        return answered(completion(payload))


class _Responses:
    def create(self, input: Any = "", instructions: str | None = None, **payload: Any) -> Any:
        messages = [{"role": "system", "content": instructions}] if instructions else []
        messages += [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        limit = payload.pop("max_output_tokens", None)
        found = completion({**payload, "max_tokens": limit, "messages": messages})
        return Answer(output_text=found["choices"][0]["message"]["content"], model=found["model"], _plain=found)


class _Elsewhere:
    """A part of `openai` that no judge has."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> _Elsewhere:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Elsewhere(f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        silence(JudgeError(Fault(self._path, "is asked for by the task; a judge answers chat completions only")))


class OpenAI:
    """A client; what it is made with (key, address, retries) is the judge's matter."""

    _completions: type[Any] = _Completions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.api_key, self.base_url = kwargs.get("api_key") or "", kwargs.get("base_url") or ""
        self.chat = SimpleNamespace(completions=self._completions())
        self.responses = _Responses()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Elsewhere(f"openai.{name}")

    def with_options(self, **_: Any) -> OpenAI:
        """The client itself."""
        return self

    def close(self) -> None:
        """Nothing to close."""


class AzureOpenAI(OpenAI):
    """A client."""


class AsyncOpenAI(OpenAI):
    """A client whose answers are awaited."""

    _completions = _AsyncCompletions


class AsyncAzureOpenAI(AsyncOpenAI):
    """A client whose answers are awaited."""


class OpenAIError(Exception):
    """What tasks expect a client to raise; ours raises `JudgeError`."""


CLIENTS: Final[Mapping[str, Any]] = {
    "OpenAI": OpenAI, "AzureOpenAI": AzureOpenAI, "AsyncOpenAI": AsyncOpenAI, "AsyncAzureOpenAI": AsyncAzureOpenAI,
    "Client": OpenAI, "AsyncClient": AsyncOpenAI,
}  # fmt: skip
"""Names that are swapped in an installed `openai`, or given where there is none."""
_ERRORS: Final[Sequence[str]] = (
    "APIError", "APIConnectionError", "APIStatusError", "APITimeoutError", "AuthenticationError", "BadRequestError",
    "InternalServerError", "NotFoundError", "PermissionDeniedError", "RateLimitError",
)  # fmt: skip


def stand_in() -> Mapping[str, Any]:
    """The contents of `openai` where it is not installed."""
    errors = {name: type(name, (OpenAIError,), {}) for name in _ERRORS}
    old = SimpleNamespace(create=lambda **payload: answered(completion(payload)))
    return {**CLIENTS, **errors, "OpenAIError": OpenAIError, "ChatCompletion": old, "api_key": None, "__version__": "1"}


def build_client(model: str | None = None, **_: Any) -> tuple[OpenAI, str]:
    """`lmms_eval.azure_openai_compat`: a client and the model that it asks."""
    return OpenAI(), model or "gpt-4o"


def has_endpoint_support(*_: Any, **__: Any) -> bool:
    """`lmms_eval.azure_openai_compat`: True, so that tasks ask their client."""
    return True


class Credential:
    """A credential of `azure.identity`; the judge has its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


def get_bearer_token_provider(*_: Any, **__: Any) -> Callable[[], str]:
    """`azure.identity`: what gives a token; the judge has its own."""
    return str
