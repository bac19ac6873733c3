"""Models behind OpenAI-compatible servers: completions with log-probabilities, completions and chat for text."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from fusion_eval.errors import ConfigError, EvaluationError, Fault
from fusion_eval.harness.engine.chat_parts import messages_of
from fusion_eval.harness.engine.encoder import EMPTY, Encoder
from fusion_eval.harness.engine.generation import Settings, cut, frozen, normalise, safe_stops, thawed, without_thoughts
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work
from fusion_eval.harness.engine.server import Server, first_choice
from fusion_eval.harness.engine.text_model import text_only
from fusion_eval.harness.engine.vision_picture import notes_of
from fusion_eval.harness.engine.vision_settings import plain
from fusion_eval.harness.media import Asked, Conversation

UNSCORED = "the server scores no first token of a text, so it is left out"


def _pair(context: str, continuation: str) -> Pair:
    """A pair of texts; where nothing stands before, the server gives no score for the first token."""
    return Pair(context, continuation, EMPTY if not continuation else "" if context else UNSCORED)


class HttpModel:
    """A served model behind the engine protocol.

    Args:
        server: where it is.
        encoder: its tokenizer, so that borders between context and continuation are exact; None to leave that to the
            server's own text offsets.
        think_end: text that ends the model's thoughts.
        identity: tells served weights apart in the store of answers; the server's name for them by default.
    """

    def __init__(
        self, server: Server, encoder: Encoder | None = None, *, think_end: str | None = None, identity: str = ""
    ) -> None:
        self.server = server
        self.encoder = encoder
        self.name = server.model
        self.think_end = think_end
        self.work: dict[str, float] = {}
        self._identity = identity or f"{server.url} {server.model}"
        self._count_lock = threading.Lock()
        self._asked: dict[Prompt, Conversation] = {}

    @property
    def fingerprint(self) -> str:
        """A digest of address, name and tokenizer; set `identity` where one name serves changing weights."""
        parts = [self._identity, self.encoder.key if self.encoder else "", str(self.server.chat)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def encode_pairs(self, pairs: Sequence[tuple[Asked, str]]) -> list[list[Pair]]:
        """See `LikelihoodScorer`.

        Raises:
            EvaluationError: a context with pictures; chats give no log-probabilities of what they are told.
        """
        texts = [(text_only(context, self.name), continuation) for context, continuation in pairs]
        if self.encoder is not None:
            return self.encoder.pairs(texts)
        return [[_pair(context, continuation)] for context, continuation in texts]

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        """See `LikelihoodScorer`; without a tokenizer a text is one window."""
        return self.encoder.texts(texts) if self.encoder is not None else [[_pair("", text)] for text in texts]

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """Units of as many requests as may be in flight."""
        order = sorted(range(len(pieces)), key=lambda i: str(pieces[i].context))
        size = self.server.concurrency * 2
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        return [Work(tuple(part), len(part), [pieces[i] for i in part]) for part in parts]

    def score(self, work: Work) -> list[Score]:
        """See `LikelihoodScorer`.

        Raises:
            EvaluationError: the server gives no log-probabilities of the prompt.
        """
        return self._together(self._score, work.payload)

    def _score(self, piece: Pair) -> Score:
        if not piece.continuation:
            return Score(0.0, True, 0)
        if isinstance(piece.context, str):
            prompt: Any = piece.context + str(piece.continuation)
        else:
            prompt = [*piece.context, *piece.continuation]
        answer = self.server.post(
            "/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
        )
        self._count(answer)
        found = first_choice(answer, f"{self.server.url}/completions").get("logprobs")
        if not found or not found.get("token_logprobs"):
            raise EvaluationError(
                Fault(f"{self.server.url}/completions", "gives no log-probabilities of the prompt",
                      "a server that supports echo with logprobs", "Use tasks that generate, or another backend.")
            )  # fmt: skip
        return self._own_part(found, piece)

    def _own_part(self, found: dict[str, Any], piece: Pair) -> Score:
        try:
            return _own_part(found, piece)
        except (KeyError, IndexError, TypeError) as error:
            said = f"gives log-probabilities of another shape ({type(error).__name__}: {error})"
            do = "Give the server a tokenizer, or leave it out." if self.encoder is None else "Leave tokenizer out."
            raise EvaluationError(Fault(f"{self.server.url}/completions", said, "one per token", do)) from error

    def encode_prompts(self, prompts: Sequence[tuple[Asked, dict[str, Any], int]]) -> list[Prompt]:
        """See `Generator`.

        Raises:
            ConfigError: pictures for a server that is not asked by chat.
        """
        return [self._prompt(asked, normalise(settings), seed) for asked, settings, seed in prompts]

    def _prompt(self, asked: Asked, settings: Settings, seed: int) -> Prompt:
        media: tuple[str, ...] = ()
        if isinstance(asked, str) or not (asked.media or self.server.chat):
            text, mark = text_only(asked, self.name), ""
        elif not self.server.chat:
            found = "holds media, and the server is asked for completions"
            raise ConfigError(Fault(f"prompt for '{self.name}'", found, "a chat", "Set server.chat=true."))
        else:
            text, media, settings = asked.text, tuple(m.digest for m in asked.media), plain(settings)
            mark = notes_of(asked.media)
        seen = seed if settings.sampled else None
        prompt = Prompt(text, None, frozen(settings), seen, mark, media)
        if not isinstance(asked, str) and self.server.chat:
            prompt = replace(prompt, media=(*media, asked.key))  # what stands where is part of the question
            self._asked[prompt] = asked
        return prompt

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """Units of as many requests as may be in flight."""
        size = self.server.concurrency * 2
        places = range(len(prompts))
        parts = [places[start : start + size] for start in range(0, len(prompts), size)]
        return [Work(tuple(part), len(part), [prompts[i] for i in part]) for part in parts]

    def generate(self, work: Work) -> list[str]:
        """See `Generator`."""
        return self._together(self._generate, work.payload)

    def _generate(self, prompt: Prompt) -> str:
        settings = thawed(prompt.settings)
        stops = [stop for stop in settings.until if stop]
        body: dict[str, Any] = {
            **settings.other, "max_tokens": settings.max_tokens, "temperature": 0.0, **settings.options,
        }  # fmt: skip
        if stops and self.think_end is None:
            body["stop"] = safe_stops(stops)[:4]  # the protocol's limit; the rest is cut here
        if prompt.seed is not None:
            body["seed"] = prompt.seed
        if self.server.chat:
            asked = self._asked.get(prompt)
            messages = _messages(prompt.text) if asked is None else messages_of(asked, self.name)
            answer = self.server.post("/chat/completions", {**body, "messages": messages})
            said = first_choice(answer, f"{self.server.url}/chat/completions").get("message") or {}
            text = said.get("content") or ""
        else:
            answer = self.server.post("/completions", {**body, "prompt": prompt.text})
            text = first_choice(answer, f"{self.server.url}/completions").get("text") or ""
        self._count(answer)
        return cut(without_thoughts(text, self.think_end), stops)

    def _together(self, function: Any, items: Sequence[Any]) -> list[Any]:
        with ThreadPoolExecutor(self.server.concurrency) as pool:
            return list(pool.map(function, items))

    def _count(self, answer: dict[str, Any]) -> None:
        with self._count_lock:
            self.work["server_requests"] = self.work.get("server_requests", 0) + 1
            for name, count in (answer.get("usage") or {}).items():
                if isinstance(count, int):
                    self.work[name] = self.work.get(name, 0) + count

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as one string: rendered by the tokenizer, or kept as JSON for the server's own template."""
        if self.server.chat:
            return json.dumps(list(messages), ensure_ascii=False)
        if self.encoder is None:
            raise EvaluationError(
                Fault(
                    "apply_chat_template",
                    "the server's completions need a tokenizer",
                    do="Set tokenizer, or chat=true.",
                )
            )
        return str(
            self.encoder.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )  # fmt: skip


def _messages(text: str) -> list[dict[str, str]]:
    """The conversation that `apply_chat_template` kept as JSON, or the text as one message."""
    if text.startswith("[{"):
        try:
            return list(json.loads(text))
        except ValueError:
            pass
    return [{"role": "user", "content": text}]


def _own_part(found: dict[str, Any], piece: Pair) -> Score:
    """The score of the continuation's tokens within an echoed prompt (the token generated after it is left out)."""
    values = found["token_logprobs"]
    if isinstance(piece.context, str):
        start, end = len(piece.context), len(piece.context) + len(piece.continuation)
        offsets = found["text_offset"]
        own = [i for i in range(len(values)) if start <= offsets[i] < end and values[i] is not None]
    else:
        first = len(piece.context)
        own = list(range(first, first + len(piece.continuation)))
    total = sum(float(values[i]) for i in own)
    best = found.get("top_logprobs") or [None] * len(values)
    greedy = all(best[i] and max(best[i].values()) <= values[i] + 1e-9 for i in own)
    return Score(total, greedy, len(own))
