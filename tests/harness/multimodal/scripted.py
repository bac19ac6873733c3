"""An engine that answers conversations with given texts, and how such answers are paired with questions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusion_eval.harness.engine.generation import cut, frozen, normalise
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work
from fusion_eval.harness.media import Asked, Conversation
from fusion_eval.harness.multimodal.suite import MultimodalSuite

Answers = Mapping[str, str] | Callable[[Conversation], str]


class ScriptedModel:
    """A model whose answers are known.

    Args:
        answers: conversation key -> text, or a function of the conversation.
        scores: (conversation, continuation) -> log-likelihood; by default a hash of both.
        batch_size: prompts of one unit of work.
    """

    name = "scripted"

    def __init__(
        self, answers: Answers = hash, scores: Callable[[Conversation, str], float] | None = None, batch_size: int = 1,
        fingerprint: str = "scripted",
    ) -> None:  # fmt: skip
        self.answers = answers
        self.scores = scores or hashed_score
        self.batch_size = batch_size
        self.fingerprint = fingerprint
        self.work: dict[str, float] = {}
        self.batches: list[list[Conversation]] = []
        self._asked: dict[str, Conversation] = {}

    def _key(self, asked: Asked) -> str:
        assert isinstance(asked, Conversation)
        self._asked[asked.key] = asked
        return asked.key

    def encode_pairs(self, pairs: Sequence[tuple[Asked, str]]) -> list[list[Pair]]:
        return [[Pair(self._key(asked), text, media=_digests(asked))] for asked, text in pairs]

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        raise NotImplementedError

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        return [Work((i,), 1, piece) for i, piece in enumerate(pieces)]

    def score(self, work: Work) -> list[Score]:
        piece = work.payload
        return [Score(self.scores(self._asked[piece.context], piece.continuation), False)]

    def encode_prompts(self, prompts: Sequence[tuple[Asked, dict[str, Any], int]]) -> list[Prompt]:
        return [
            Prompt(self._key(asked), None, frozen(normalise(settings)), None, media=_digests(asked))
            for asked, settings, _ in prompts
        ]

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        size = self.batch_size
        return [
            Work(tuple(range(start, min(start + size, len(prompts)))), size, prompts[start : start + size])
            for start in range(0, len(prompts), size)
        ]

    def generate(self, work: Work) -> list[str]:
        asked = [self._asked[prompt.text] for prompt in work.payload]
        self.batches.append(asked)
        return [cut(self._answer(item), dict(p.settings)["until"]) for item, p in zip(asked, work.payload, strict=True)]

    def _answer(self, asked: Conversation) -> str:
        return self.answers[asked.key] if isinstance(self.answers, Mapping) else str(self.answers(asked))

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        raise NotImplementedError


def _digests(asked: Asked) -> tuple[str, ...]:
    assert isinstance(asked, Conversation)
    return tuple(medium.digest for medium in asked.media)


def hashed_score(asked: Conversation, text: str) -> float:
    return -(int(hashlib.md5(f"{asked.key}/{text}".encode()).hexdigest(), 16) % 1000) / 100


def keyed(suite: MultimodalSuite, recorded: Mapping[tuple[str, int], str]) -> dict[str, str]:
    """Answers by conversation, from those by (task, document)."""
    found: dict[str, str] = {}
    with suite.names():
        for share in suite.shares(suite.options, None, None):
            for request in (request for built in share.values() for request in built.requests):
                if request.request_type != "generate_until":
                    continue
                answer = recorded[request.task_name or "", request.doc_id or 0]
                assert found.setdefault(request.args[0].key, answer) == answer, "one question, two answers"
    return found
