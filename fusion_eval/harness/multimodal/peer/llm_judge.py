"""`lmms_eval.llm_judge`: the servers that tasks make, all of which ask the judge of the run."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusion_eval.harness.judge.active import ask_for_task

BINARY = (
    "Decide whether a prediction answers a question as the reference does. Wording, case, units written out and "
    "rounding do not matter; a different value, a missing part or a contradiction does.\n\n"
    "Question: {question}\nReference: {answer}\nPrediction: {prediction}\n\n"
    "Write only {positive} if it is right, or {negative} if it is not."
)
COMPARATIVE = (
    "Rate two responses to a question, each from {low} to {high}, by helpfulness, accuracy and detail. Write "
    "the two numbers on the first line with a space between them, then your reasons.\n\n"
    "Question: {question}\n{context}\nResponse 1: {response1}\n\nResponse 2: {response2}\n{more}"
)


@dataclass
class ServerConfig:
    """How a task would have its judge asked; the model's name counts where the run's settings name none."""

    model_name: str = "gpt-4"
    temperature: float | None = 0.0
    max_tokens: int | None = 1024
    top_p: float | None = None
    timeout: float = 60
    num_retries: int = 5
    retry_delay: float = 10
    max_concurrent: int = 10
    system_prompt: str | None = None
    response_format: str | None = None
    judge_type: str = "general"
    output_format: str | None = None
    score_range: tuple[float, float] | None = None
    evaluation_criteria: dict[str, Any] | None = None


@dataclass
class Request:
    """What a task asks; of the pictures each is a path, base64 text, bytes or a PIL image."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[Any] | None = None
    config: ServerConfig | None = None
    question: str | None = None
    answer: str | None = None
    prediction: str | None = None
    context: str | None = None
    options: list[str] | None = None
    response1: str | None = None
    response2: str | None = None
    custom_prompt: str | None = None
    prompt_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Response:
    """What a task gets; a judge that gives no answer raises instead of `success=False`."""

    content: str
    model_used: str
    usage: dict[str, int] | None = None
    raw_response: Any = None
    parsed_result: Any = None
    success: bool = True
    error_message: str | None = None


class ServerInterface:
    """A judge as tasks know it."""

    def __init__(self, config: ServerConfig | None = None, **_: Any) -> None:
        self.config = config or ServerConfig()

    def is_available(self) -> bool:
        """True: whether anybody answers shows when a question is asked."""
        return True

    def prepare_messages(self, request: Request) -> list[dict[str, Any]]:
        """The messages with the system prompt first and the pictures in the last one of the user."""
        config = request.config or self.config
        messages = [dict(message) for message in request.messages]
        if config.system_prompt and all(message.get("role") != "system" for message in messages):
            messages.insert(0, {"role": "system", "content": config.system_prompt})
        return with_images(messages, request.images or ())

    def evaluate(self, request: Request) -> Response:
        """The judge's answer to a request."""
        config = request.config or self.config
        options: dict[str, Any] = {
            "model": config.model_name, "temperature": config.temperature, "max_tokens": config.max_tokens,
            "top_p": config.top_p,
        }  # fmt: skip
        if config.response_format == "json":
            options["response_format"] = {"type": "json_object"}
        return Response(ask_for_task(self.prepare_messages(request), **options), config.model_name)

    async def evaluate_async(self, request: Request) -> Response:
        """See `evaluate`."""
        return self.evaluate(request)

    async def evaluate_batch(self, requests: Sequence[Request]) -> list[Response]:
        """Answers in order."""
        return [self.evaluate(request) for request in requests]

    def evaluate_binary(
        self, question: str, answer: str, prediction: str, output_format: str = "0/1",
        custom_prompt: str | None = None, **kwargs: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Right or wrong."""
        images = kwargs.pop("images", None)
        prompt = JudgePromptBuilder.build_binary_prompt(
            question, answer, prediction, output_format, custom_prompt, **kwargs
        )
        response = self._asked(prompt, images)
        return _told(response, prompt, result=ResponseParser.parse_binary_response(response.content, output_format))

    def evaluate_comparative(
        self, question: str, response1: str, response2: str, context: str | None = None,
        score_range: tuple[int, int] = (1, 10), custom_prompt: str | None = None, images: Any = None, **kwargs: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A score for each of two responses."""
        prompt = JudgePromptBuilder.build_comparative_prompt(
            question, response1, response2, context, score_range, custom_prompt, **kwargs
        )
        response = self._asked(prompt, images)
        return _told(response, prompt, scores=ResponseParser.parse_comparative_response(response.content))

    def evaluate_with_rubric(
        self, question: str, prediction: str, rubric: Mapping[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        """Scores by the items of a rubric."""
        items = "\n".join(f"- {name}: {meaning}" for name, meaning in rubric.items())
        prompt = (
            f"Score a response by each item of a rubric. Write a JSON object from item to score.\n\n"
            f"Question: {question}\n\nResponse: {prediction}\n\nRubric:\n{items}"
        )
        response = self._asked(prompt, kwargs.get("images"))
        return _told(response, prompt, scores=ResponseParser.parse_json_response(response.content))

    async def evaluate_binary_async(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """See `evaluate_binary`."""
        return self.evaluate_binary(*args, **kwargs)

    async def evaluate_comparative_async(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """See `evaluate_comparative`."""
        return self.evaluate_comparative(*args, **kwargs)

    async def evaluate_with_rubric_async(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """See `evaluate_with_rubric`."""
        return self.evaluate_with_rubric(*args, **kwargs)

    def _asked(self, prompt: str, images: Any) -> Response:
        return self.evaluate(Request([{"role": "user", "content": prompt}], images, self.config))


class ProviderFactory:
    """Makes servers; every provider asks the judge of the run."""

    @classmethod
    def create_provider(cls, api_type: str | None = None, config: ServerConfig | None = None) -> ServerInterface:
        """The server of a provider."""
        return ServerInterface(config)


def get_server(server_name: str | None = None, config: ServerConfig | None = None, **_: Any) -> ServerInterface:
    """The server of a provider."""
    return ServerInterface(config)


class JudgePromptBuilder:
    """The texts that judges are asked where a task brings none of its own."""

    @staticmethod
    def build_binary_prompt(
        question: str, answer: str, prediction: str, output_format: str = "0/1", custom_prompt: str | None = None,
        **kwargs: Any,
    ) -> str:  # fmt: skip
        """A question whose answer is one of two words."""
        if custom_prompt:
            return custom_prompt.format(
                question=question, answer=answer, pred=prediction, prediction=prediction, **kwargs
            )
        yes, no = ("1", "0") if output_format in ("0/1", "1/0") else ("Yes", "No")
        return BINARY.format(question=question, answer=answer, prediction=prediction, positive=yes, negative=no)

    @staticmethod
    def build_correctness_prompt(
        question: str, answer: str, prediction: str, output_format: str = "yes/no", **_: Any
    ) -> str:
        """A question whose answer is one of two words."""
        return JudgePromptBuilder.build_binary_prompt(question, answer, prediction, output_format)

    @staticmethod
    def build_comparative_prompt(
        question: str, response1: str, response2: str, context: str | None = None,
        score_range: tuple[int, int] = (1, 10), custom_prompt: str | None = None,
        evaluation_instruction: str | None = None, **kwargs: Any,
    ) -> str:  # fmt: skip
        """A question whose answer begins with two numbers."""
        if custom_prompt:
            return custom_prompt.format(
                question=question, response1=response1, response2=response2, context=context or "", **kwargs
            )
        return COMPARATIVE.format(
            low=score_range[0], high=score_range[1], question=question, response1=response1, response2=response2,
            context=f"Context: {context}\n" if context else "", more=evaluation_instruction or "",
        )  # fmt: skip


class ResponseParser:
    """What a judge's answer means."""

    @staticmethod
    def parse_binary_response(response: str, output_format: str = "0/1") -> int | bool:
        """1 or 0 where the format is of digits, else whether the answer begins with yes."""
        text = response.strip().lower()
        return int("1" in text) if output_format in ("0/1", "1/0") else text.startswith("yes")

    @staticmethod
    def parse_score_response(response: str, score_range: tuple[float, float] | None = None) -> float:
        """The first number, kept within the range; the least of the range where there is none."""
        found = re.search(_NUMBER, response)
        low, high = score_range or (float("-inf"), float("inf"))
        return max(low, min(high, float(found[0]))) if found else (score_range[0] if score_range else 0.0)

    @staticmethod
    def parse_comparative_response(response: str) -> tuple[float, float]:
        """The first two numbers of the first line; -1 for both where there are none."""
        found = re.findall(_NUMBER, response.strip().partition("\n")[0].replace(",", " ").replace(";", " "))
        return (float(found[0]), float(found[1])) if len(found) > 1 else (-1.0, -1.0)

    @staticmethod
    def parse_json_response(response: str) -> dict[str, Any]:
        """The outermost JSON object of the answer, or an empty one."""
        found = re.search(r"\{.*\}", response, re.DOTALL)
        try:
            return dict(json.loads(found[0])) if found else {}
        except ValueError:
            return {}


_NUMBER = r"-?\d+(?:\.\d+)?"


def with_images(messages: list[dict[str, Any]], images: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages with pictures as data URLs in the last one of the user."""
    places = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    if not images or not places:
        return messages
    message = messages[places[-1]]
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    shown = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return [*messages[: places[-1]], {**message, "content": [*parts, *shown]}, *messages[places[-1] + 1 :]]


def data_url(image: Any) -> str:
    """A picture as a data URL, from a path, base64 text, bytes or a PIL image."""
    if isinstance(image, str):
        if image.startswith(("data:", "http://", "https://")):
            return image
        return _encoded(Path(image).read_bytes()) if len(image) < 1024 and Path(image).is_file() else _jpeg(image)
    if isinstance(image, bytes):
        return _encoded(image)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return _encoded(buffer.getvalue())


def _encoded(content: bytes) -> str:
    kind = "png" if content.startswith(b"\x89PNG") else "webp" if content[8:12] == b"WEBP" else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _jpeg(text: str) -> str:
    return f"data:image/{'png' if text.startswith('iVBOR') else 'jpeg'};base64,{text}"


def _told(response: Response, prompt: str, **parsed: Any) -> dict[str, Any]:
    return {
        **parsed, "raw_response": response.content, "model": response.model_used, "prompt": prompt,
        "success": response.success,
    }  # fmt: skip
