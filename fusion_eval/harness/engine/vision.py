"""The transformers backend for models that see: `AutoModelForImageTextToText` with its `AutoProcessor`.

A prompt is cut after its last picture. What comes before the cut (the model's own `forward`, pictures included) is
computed once for all questions and choices that share it, what follows is text. Where scores are asked for, all
operands depend on the question alone; where text is written, rows run in batches, and a next token that is nearly tied
is decided by passes over its row alone. So neither the size of batches nor what else is asked changes an answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusion_eval.harness.engine.causal import ScorerOptions
from fusion_eval.harness.engine.decode import Decoder
from fusion_eval.harness.engine.encoder import Encoder
from fusion_eval.harness.engine.generation import thawed
from fusion_eval.harness.engine.linear import FastLinears
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work
from fusion_eval.harness.engine.transformers_model import TransformersModel, weights_digest
from fusion_eval.harness.engine.vision_inputs import InputMaker, Shown
from fusion_eval.harness.engine.vision_passes import Passes
from fusion_eval.harness.engine.vision_patches import FastPatches
from fusion_eval.harness.engine.vision_picture import MAX_PIXELS
from fusion_eval.harness.engine.vision_prompts import Key, SeenPrompts
from fusion_eval.harness.engine.vision_render import Renderer
from fusion_eval.harness.engine.vision_score import ChoiceScorer, check_length
from fusion_eval.harness.engine.vision_sight import Sight, Way
from fusion_eval.harness.engine.vision_write import Writer
from fusion_eval.harness.media import Conversation

_QUESTIONS = 16


@dataclass(frozen=True, slots=True)
class VisionOptions:
    """How pictures are treated.

    Args:
        max_pixels: of one picture; larger ones are refused.
        max_new_tokens: of an answer whose task does not say.
        kept_bytes: of features kept for pictures that come again, and once more of keys and values.
        way: see `Sight`.
        scorer: of plain text.
    """

    max_pixels: int = MAX_PIXELS
    max_new_tokens: int = 1024
    kept_bytes: int = 512 << 20
    way: Way | None = None
    scorer: ScorerOptions | None = None


@dataclass(frozen=True, slots=True)
class Shots:
    """A unit of work with pictures: pieces of one prefix to score, or a batch to write."""

    pieces: tuple[Any, ...]


class VisionLanguageModel(SeenPrompts):
    """A vision-language model behind the engine protocol; plain text goes through the engine of text.

    Args:
        model: of `AutoModelForImageTextToText`.
        processor: of `AutoProcessor`.
        name: for reports.
        batch_size: prompts written together; "auto" for a number that suits the device.
        max_length: tokens that the model takes; None to ask its configuration.
        encoder: rules for token ids; None to build them.
        think_end: text that ends the model's thoughts.
        chat_options: further keywords of the chat template.
        options: see `VisionOptions`.
    """

    text: TransformersModel

    def __init__(
        self, model: Any, processor: Any, *, name: str = "model", batch_size: int | str = "auto",
        max_length: int | None = None, encoder: Encoder | None = None, think_end: str | None = None,
        chat_options: dict[str, Any] | None = None, options: VisionOptions | None = None,
    ) -> None:  # fmt: skip
        self.options = options or VisionOptions()
        tokenizer = getattr(processor, "tokenizer", processor)
        text = TransformersModel(
            model, tokenizer, name=name, batch_size=batch_size, max_length=max_length, encoder=encoder,
            options=self.options.scorer, think_end=think_end, chat_options=chat_options,
        )  # fmt: skip
        renderer = Renderer(processor, name, chat_options)
        super().__init__(text, renderer, self.options.max_new_tokens, self.options.max_pixels)
        self.name = name
        self.work = text.work
        self.max_length = text.max_length
        passes = Passes(model, self.work)
        maker = InputMaker(
            processor, name, lambda text: self.text.encoder.encode([text])[0], dtype=passes.dtype, device=passes.device,
            max_pixels=self.options.max_pixels, takes=passes.takes,
        )  # fmt: skip
        self.sight = Sight(passes, maker, self.renderer, self.options.kept_bytes, self.options.way)
        self.scorer = ChoiceScorer(self.sight, self.text.scorer.runner.budget.tokens)
        self.writer = Writer(
            self.sight, lambda hooks: Decoder(self.text.scorer, tokenizer, think_end, hooks), self._shown,
            self.max_length, name,
        )  # fmt: skip
        self._linears, self._patches = FastLinears(model), FastPatches(model)
        self.batch_size = batch_size if isinstance(batch_size, int) else passes.rows_that_fit()
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of weights, configuration, tokenizer, processor and limits."""
        if self._fingerprint is None:
            processor = self.sight.maker.processor
            told = processor.to_json_string() if hasattr(processor, "to_json_string") else type(processor).__name__
            salt = f"{self.text.encoder.key} {told} {self.renderer.options}"
            self._fingerprint = weights_digest(self.text.model, hashlib.sha256(salt.encode()).hexdigest())
        return self._fingerprint

    def _shown(self, piece: Pair | Prompt, way: Way | None = None, exact: bool = True) -> Shown:
        tokens = piece.context if isinstance(piece, Pair) else piece.tokens
        media = [self._media[digest] for digest in piece.media]
        return self.sight.show(self._rendered[tokens, piece.media], media, way, exact)

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """Units of the questions about the same pictures; plain text as the engine of text plans it."""
        groups: dict[Any, dict[Key, list[int]]] = {}
        texts = []
        for i, piece in enumerate(pieces):
            key = (piece.context, piece.media)
            if not self._asks(*key):
                texts.append(i)
                continue
            groups.setdefault(piece.media or key, {}).setdefault(key, []).append(i)
        works = _moved(self.text.plan_scores([pieces[i] for i in texts]), texts)
        for questions in groups.values():
            rows = list(questions.values())
            for start in range(0, len(rows), _QUESTIONS):
                places = tuple(i for row in rows[start : start + _QUESTIONS] for i in row)
                cost = sum(len(pieces[i].continuation) + 8 for i in places) + 256 * len(pieces[places[0]].media)
                works.append(Work(places, cost, Shots(tuple(pieces[i] for i in places))))
        return works

    def score(self, work: Work) -> list[Score]:
        """See `LikelihoodScorer`.

        Raises:
            DataError: a picture that cannot be read.
            EvaluationError: a prompt that is too long, logits that are not numbers, or not enough memory.
        """
        if not isinstance(work.payload, Shots):
            return self.text.score(work.payload)
        found: dict[Pair, Score] = {}
        questions: dict[Key, list[Pair]] = {}
        for pair in work.payload.pieces:
            questions.setdefault((pair.context, pair.media), []).append(pair)
        with self._linears(), self._patches():
            for pairs in questions.values():
                found.update(zip(pairs, self._score(pairs), strict=True))
        return [found[pair] for pair in work.payload.pieces]

    def _score(self, pairs: Sequence[Pair]) -> list[Score]:
        """Of the choices of one question."""
        continuations: list[Any] = [pair.continuation for pair in pairs]
        full = [c for c in continuations if c]
        if not full:
            return [Score(0.0, True, 0) for _ in pairs]
        shown = self._shown(pairs[0])
        check_length(shown, max(full, key=len), self.max_length, self.name)
        if self.sight.way([self._media[digest] for digest in pairs[0].media]) == "whole":
            scores = iter([self.scorer.score_whole(shown, continuation) for continuation in full])
        else:
            scores = iter(self.scorer.score(shown, full))
        return [next(scores) if continuation else Score(0.0, True, 0) for continuation in continuations]

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """Batches of equal settings, those about the same pictures together, the longest first."""
        texts = [i for i, prompt in enumerate(prompts) if not self._asks(prompt.tokens, prompt.media)]
        works = _moved(self.text.plan_prompts([prompts[i] for i in texts]), texts)
        settings: dict[Any, dict[Any, list[int]]] = {}
        for i, prompt in enumerate(prompts):
            if self._asks(prompt.tokens, prompt.media):
                settings.setdefault(prompt.settings, {}).setdefault(prompt.media or i, []).append(i)
        for groups in settings.values():
            works += self._batches(prompts, list(groups.values()))
        return works

    def _batches(self, prompts: Sequence[Prompt], groups: list[list[int]]) -> Iterable[Work]:
        def length(i: int) -> int:
            return len(prompts[i].tokens or ())

        for group in groups:
            group.sort(key=lambda i: (-length(i), i))
        groups.sort(key=lambda group: (-len(prompts[group[0]].media), -length(group[0]), group[0]))
        order = [i for group in groups for i in group]
        for start in range(0, len(order), self.batch_size):
            places = tuple(order[start : start + self.batch_size])
            new = min(64, thawed(prompts[places[0]].settings).max_tokens)
            cost = sum(length(i) + 256 * len(prompts[i].media) + new for i in places)
            yield Work(places, cost, Shots(tuple(prompts[i] for i in places)))

    def generate(self, work: Work) -> list[str]:
        """See `Generator`; for errors see `score`."""
        if not isinstance(work.payload, Shots):
            return self.text.generate(work.payload)
        prompts: Sequence[Prompt] = work.payload.pieces
        settings = thawed(prompts[0].settings)
        with self._linears(), self._patches():
            alone = [bool(settings.other) or self._runs_whole(prompt) for prompt in prompts]
            batch = [prompt for prompt, by_itself in zip(prompts, alone, strict=True) if not by_itself]
            self.sight.glance([[self._media[digest] for digest in prompt.media] for prompt in batch])
            written = iter(self.writer.write(batch, settings) if batch else [])
            return [
                self.writer.write_alone(prompt, settings, self.text.tokenizer) if by_itself else next(written)
                for prompt, by_itself in zip(prompts, alone, strict=True)
            ]

    def _runs_whole(self, prompt: Prompt) -> bool:
        return self.sight.way([self._media[digest] for digest in prompt.media]) == "whole"

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation in text as one prompt."""
        from fusion_eval.harness.media import Turn

        conversation = Conversation(tuple(Turn(m["role"], (m["content"],)) for m in messages))
        return self.renderer.render(conversation, add_generation_prompt)


def _moved(works: Sequence[Work], places: Sequence[int]) -> list[Work]:
    """Units over a part of the pieces as units over all of them, whose payloads are the units themselves."""
    return [Work(tuple(places[i] for i in work.positions), work.cost, work) for work in works]
