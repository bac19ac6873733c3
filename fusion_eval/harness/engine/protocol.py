"""The protocol between the scheduler and whatever runs a model.

An engine turns texts into pieces, pieces into units of work, and a unit of work into results. The scheduler decides
which units run on which rank, and stores what comes back, so an engine knows nothing of tasks, ranks or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fusion_eval.harness.media import Asked


@dataclass(frozen=True, slots=True)
class Pair:
    """A continuation to score after a context: token ids, or, for servers that tokenise themselves, strings.

    Args:
        mark: what is noteworthy, for instance "context truncated"; it does not change the result.
        media: digests of what the context shows, in order.
    """

    context: tuple[int, ...] | str
    continuation: tuple[int, ...] | str
    mark: str = field(default="", compare=False)
    media: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """The log-likelihood (natural logarithm) of a continuation, whether it is the greedy one, and its length."""

    value: float
    greedy: bool
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to continue.

    Args:
        text: the prompt.
        tokens: its ids, left-truncated to what fits; None for servers that tokenise themselves.
        settings: normalised generation settings as sorted items, hashable.
        seed: of the sampler; None for greedy text.
        media: digests of what the prompt shows, in order.
    """

    text: str
    tokens: tuple[int, ...] | None
    settings: tuple[tuple[str, Any], ...]
    seed: int | None = None
    mark: str = field(default="", compare=False)
    media: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """A unit of work: the positions of the pieces that it answers, in order.

    Args:
        positions: into the sequence that was planned.
        cost: tokens, for balancing ranks.
        payload: the engine's own plan.
    """

    positions: tuple[int, ...]
    cost: int
    payload: Any = field(default=None, compare=False)


@runtime_checkable
class LikelihoodScorer(Protocol):
    """Scores continuations."""

    def encode_pairs(self, pairs: Sequence[tuple[Asked, str]]) -> list[list[Pair]]:
        """Pieces of each (context, continuation); their scores add up."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        """Pieces (windows) of each whole text."""
        ...

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """Units of work over distinct pieces; the same for the same pieces, on every rank."""
        ...

    def score(self, work: Work) -> list[Score]:
        """One score per position of the unit."""
        ...


Told = Callable[[Mapping[int, Score]], None]
"""Told the scores of a forward pass, by position."""


@runtime_checkable
class PartialScorer(Protocol):
    """A scorer whose units of work take several forward passes, each of which can be kept."""

    def score_rest(self, work: Work, known: Mapping[int, Score], told: Told) -> list[Score]:
        """As `LikelihoodScorer.score`, without the passes that would give none but known scores.

        Args:
            work: the unit.
            known: scores by position.
            told: called with the scores of each pass as it ends.
        """
        ...


@runtime_checkable
class Generator(Protocol):
    """Continues prompts."""

    def encode_prompts(self, prompts: Sequence[tuple[Asked, dict[str, Any], int]]) -> list[Prompt]:
        """Each (text or conversation, settings, seed) made ready; the seed is dropped where nothing is sampled."""
        ...

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """Units of work over distinct prompts; the same for the same prompts, on every rank."""
        ...

    def generate(self, work: Work) -> list[str]:
        """One text per position of the unit, cut at its stop strings."""
        ...


@runtime_checkable
class LanguageModel(LikelihoodScorer, Generator, Protocol):
    """A model that can do both.

    `fingerprint` tells models apart: equal only if every answer is equal. `work` counts what was done.
    """

    name: str
    work: dict[str, float]

    @property
    def fingerprint(self) -> str:
        """Tells models apart."""
        ...

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as one prompt."""
        ...
