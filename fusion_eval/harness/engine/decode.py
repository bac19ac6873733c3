"""Decoding with a decoder: prompts of a batch share their prefix, rows stop on their own and leave the batch."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusion_eval.harness.engine.causal import CausalScorer
from fusion_eval.harness.engine.generation import Settings, cut, is_final, without_thoughts
from fusion_eval.harness.engine.kv import cache_keyword, new_cache
from fusion_eval.harness.engine.model_traits import is_recurrent
from fusion_eval.harness.engine.prefill import Row, State, finite, prefill_tree
from fusion_eval.harness.engine.protocol import Prompt
from fusion_eval.harness.engine.tree import out_of_memory

logger = logging.getLogger(__name__)
_EXACT, _ROUNDED = 5e-3, 0.25


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is done otherwise for prompts that hold more than text.

    Args:
        row: (position, prompt) -> its row.
        prefill: (rows, new tokens at most) -> keys, values and logits of their prompts.
        settle: the next token of a row whose two best are nearly equal, computed in a way that depends on this row
            alone.
        tie: how near that is, as a part of the best logit.
    """

    row: Callable[[int, Prompt], Row]
    prefill: Callable[[Sequence[Row], int], State]
    settle: Callable[[Row], int]
    tie: float


class Decoder:
    """Continues prompts.

    Args:
        scorer: the model, and what is known about it.
        tokenizer: decodes what it writes.
        think_end: text that ends the model's thoughts; what stands before it is dropped.
        hooks: see `Hooks`; None for plain text.
    """

    def __init__(
        self, scorer: CausalScorer, tokenizer: Any, think_end: str | None = None, hooks: Hooks | None = None
    ) -> None:
        model = scorer.model
        self.model = model
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.think_end = think_end
        self.hooks = hooks
        self.device = next(model.parameters()).device
        self._cache = cache_keyword(model)
        self._takes = inspect.signature(model.forward).parameters
        self._batches: bool | None = False if is_recurrent(model) else None
        self.ends = _end_ids(model, tokenizer)
        self.defaults = _sampling_defaults(model)

    def run(self, prompts: Sequence[Prompt], settings: Settings) -> list[str]:
        """One text per prompt.

        Raises:
            EvaluationError: logits that are not numbers, or not enough memory for one prompt.
        """
        make = self.hooks.row if self.hooks else _text_row
        rows = [_seeded(make(i, prompt)) for i, prompt in enumerate(prompts)]
        stops = self._stops(settings)
        try:
            with torch.inference_mode():
                self.scorer.settle()
                self._decode(rows, settings, stops)
        except torch.OutOfMemoryError as error:
            if len(prompts) == 1:
                raise out_of_memory(len(rows[0].tokens)) from error
            torch.cuda.empty_cache()
            middle = len(prompts) // 2
            return self.run(prompts[:middle], settings) + self.run(prompts[middle:], settings)
        return [self._text(row.new, stops) for row in rows]

    def takes(self, length: int) -> bool:
        """Whether a text that may grow to this length can be written here rather than by the model's own `generate`."""
        if self._batches is None:
            self._batches = self.hooks is not None or self._trial()
            if not self._batches:
                logger.warning("%s writes with its own generate, prompts of one length together", self._kind)
        reach = self.scorer.rotary_reach
        return self._batches and not (reach and length > reach)

    def _trial(self) -> bool:
        """Whether two rows of different lengths, continued in a batch, have the logits that each has alone."""
        size = int(self.model.get_output_embeddings().weight.shape[0])
        rows = [
            Row(i, tuple((7 * k + 3 + i) % size for k in range(n)), None, [5 % size]) for i, n in enumerate((17, 9))
        ]
        kept = dict(self.scorer.work)
        starts = [self._prefill_padded, *([self._prefill_shared] if self.scorer.shares else [])]
        try:
            with torch.inference_mode():
                alone = torch.cat([self._alone(row) for row in rows])
                return all(self._agrees(alone, start(rows)) for start in starts)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - any failure means that this architecture keeps another kind of state
            logger.debug("the trial of %s failed: %s", self._kind, error)
            return False
        finally:
            self.scorer.work.clear()
            self.scorer.work.update(kept)

    @property
    def _kind(self) -> str:
        return type(self.model).__name__

    def _alone(self, row: Row) -> torch.Tensor:
        tokens = torch.tensor([[*row.tokens, *row.new]], device=self.device)
        return finite(self.model(input_ids=tokens, use_cache=False).logits[:, -1])

    def _agrees(self, alone: torch.Tensor, state: State) -> bool:
        self._step(state)
        apart = (alone.log_softmax(-1) - state.logits.log_softmax(-1)).abs()
        exact = self.scorer.runner.dtype == torch.float32
        return bool(apart.max() < _EXACT if exact else apart.mean() < _ROUNDED)

    def _stops(self, settings: Settings) -> tuple[str, ...]:
        end = self.tokenizer.eos_token
        return (*settings.until, end) if end and end not in settings.until else settings.until

    def finish(self, tokens: list[int], settings: Settings) -> str:
        """The text of new tokens, cut at its stop strings."""
        return self._text(tokens, self._stops(settings))

    def _text(self, tokens: list[int], stops: Sequence[str]) -> str:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return cut(without_thoughts(text, self.think_end), stops)

    def _decode(self, rows: list[Row], settings: Settings, stops: Sequence[str]) -> None:
        state = self._prefill(rows, settings.max_tokens)
        check = self._checker(settings, stops)
        while True:
            self._append(state, settings)
            keep = [i for i, row in enumerate(state.rows) if not check(row)]
            if not keep:
                return
            if len(keep) < len(state.rows):
                state.select(keep)
            self._step(state)

    def _checker(self, settings: Settings, stops: Sequence[str]) -> Callable[[Row], bool]:
        """Tells whether a row is done: end token, length, or a stop string that nothing can undo."""
        tail = 8 + 4 * max((len(stop) for stop in stops), default=0)
        named = [stop for stop in stops if stop]

        def done(row: Row) -> bool:
            if row.new[-1] in self.ends or len(row.new) >= min(settings.max_tokens, row.room):
                return True
            recent = self.tokenizer.decode(row.new[-tail:], skip_special_tokens=True)
            if not any(stop in recent for stop in named):
                return False
            text = self.tokenizer.decode(row.new, skip_special_tokens=True)
            if self.think_end and self.think_end not in text:
                return False
            return is_final(without_thoughts(text, self.think_end), named)

        return done

    def _prefill(self, rows: list[Row], new_tokens: int) -> State:
        """Keys and values of all prompts, left-padded, and the logits after each."""
        if self.hooks:
            return self.hooks.prefill(rows, new_tokens)
        if all(self.scorer.takes_tree(len(row.tokens)) for row in rows):
            return prefill_tree(self.scorer.runner, rows, new_tokens)
        return self._prefill_padded(rows)

    def _prefill_shared(self, rows: Sequence[Row]) -> State:
        return prefill_tree(self.scorer.runner, rows, 1)

    def _prefill_padded(self, rows: Sequence[Row]) -> State:
        width = max(len(row.tokens) for row in rows)
        tokens = torch.zeros((len(rows), width), dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for i, row in enumerate(rows):
            tokens[i, width - len(row.tokens) :] = torch.tensor(row.tokens)
            mask[i, width - len(row.tokens) :] = 1
        cache = new_cache()
        mask = mask.to(self.device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = self._call(tokens.to(self.device), mask, positions, cache)
        return State(list(rows), cache, mask, logits)

    def _step(self, state: State) -> None:
        last = torch.tensor([[row.new[-1]] for row in state.rows], device=self.device)
        state.mask = torch.cat([state.mask, torch.ones_like(state.mask[:, :1])], dim=1)
        shifts = torch.tensor([row.shift for row in state.rows], device=self.device)
        positions = (state.mask.sum(1) - 1 + shifts)[:, None]
        state.logits = self._call(last, state.mask, positions, state.cache)

    def _call(self, tokens: Any, mask: Any, positions: Any, cache: Any) -> torch.Tensor:
        """Logits [batch, vocabulary] of the last column."""
        output = self.model(
            input_ids=tokens, attention_mask=mask, use_cache=True, **{self._cache: cache},
            **self._known(position_ids=positions, logits_to_keep=1),
        )  # fmt: skip
        self.scorer.runner.count(tokens.numel())
        return finite(output.logits[:, -1])

    def _known(self, **keywords: Any) -> dict[str, Any]:
        """The keywords that the model's forward takes."""
        return {name: value for name, value in keywords.items() if name in self._takes}

    def _append(self, state: State, settings: Settings) -> None:
        if not settings.sampled:
            chosen = self._best(state)
        else:
            scores = warped(state.logits, {**self.defaults, **settings.options}).cpu()
            chosen = [
                int(torch.multinomial(probabilities, 1, generator=row.generator))
                for probabilities, row in zip(scores, state.rows, strict=True)
            ]
        for row, token in zip(state.rows, chosen, strict=True):
            row.new.append(token)

    def _best(self, state: State) -> list[int]:
        if not self.hooks:
            best: list[int] = state.logits.argmax(-1).tolist()
            return best
        values, index = state.logits.topk(2)
        near = ((values[:, 0] - values[:, 1]) < self.hooks.tie * values[:, 0].abs().clamp(min=1.0)).tolist()
        return [
            self.hooks.settle(row) if tied else token
            for row, tied, token in zip(state.rows, near, index[:, 0].tolist(), strict=True)
        ]


def _text_row(position: int, prompt: Prompt) -> Row:
    assert prompt.tokens is not None
    return Row(position, prompt.tokens, prompt.seed)


def _seeded(row: Row) -> Row:
    """The row with a generator of its own where its text is drawn."""
    if row.seed is not None:
        digest = hashlib.sha256(repr((row.tokens, row.seed)).encode()).digest()
        row.generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return row


def warped(logits: torch.Tensor, options: dict[str, float]) -> torch.Tensor:
    """Probabilities [rows, vocabulary] after temperature, top-k, top-p and min-p, in this order."""
    scores = logits / options.get("temperature", 1.0)
    k = int(options.get("top_k", 0))
    if 0 < k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(k).values[:, -1:], -torch.inf)
    p = options.get("top_p", 1.0)
    if p < 1.0:
        ordered, index = scores.sort(descending=False)
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - p
        drop[:, -1] = False
        scores = scores.masked_fill(drop.scatter(1, index, drop), -torch.inf)
    probabilities = scores.softmax(-1)
    least = options.get("min_p", 0.0)
    if least > 0.0:
        probabilities = probabilities.masked_fill(probabilities < least * probabilities.amax(-1, True), 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    found = own if isinstance(own, list) else [own]
    return frozenset(i for i in (*found, tokenizer.eos_token_id) if i is not None)


def _sampling_defaults(model: Any) -> dict[str, float]:
    """What the model's own generation settings say about sampling (the library's default is 50 for top_k)."""
    config = getattr(model, "generation_config", None)
    found = {name: getattr(config, name, None) for name in ("top_k", "top_p", "min_p")}
    return {"top_k": 50.0, **{name: float(value) for name, value in found.items() if value is not None}}
