"""Decoding with a decoder: prompts of a batch share their prefix, rows stop on their own and leave the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.harness.engine.generation import Settings, cut, is_final, without_thoughts
from fusion_eval.harness.engine.kv import cache_keyword, new_cache
from fusion_eval.harness.engine.protocol import Prompt

_SHARED_LEAST = 16


@dataclass(slots=True)
class Row:
    """One prompt on its way."""

    position: int
    tokens: tuple[int, ...]
    seed: int | None
    new: list[int] = field(default_factory=list)
    text: str = ""
    generator: torch.Generator | None = None


class Decoder:
    """Continues prompts.

    Args:
        model: a Hugging Face causal language model in eval mode.
        tokenizer: decodes what it writes.
        work: counters to add to.
        think_end: text that ends the model's thoughts; what stands before it is dropped.
    """

    def __init__(self, model: Any, tokenizer: Any, work: dict[str, float], think_end: str | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.work = work
        self.think_end = think_end
        self.device = next(model.parameters()).device
        self._cache = cache_keyword(model)
        self.ends = _end_ids(model, tokenizer)
        self.defaults = _sampling_defaults(model)

    def run(self, prompts: Sequence[Prompt], settings: Settings) -> list[str]:
        """One text per prompt.

        Raises:
            EvaluationError: logits that are not numbers, or not enough memory for one prompt.
        """
        rows = [self._row(i, prompt) for i, prompt in enumerate(prompts)]
        stops = self._stops(settings)
        try:
            with torch.inference_mode():
                self._decode(rows, settings, stops)
        except torch.OutOfMemoryError as error:
            if len(prompts) == 1:
                raise EvaluationError(
                    Fault("memory", f"does not suffice for one prompt of {len(rows[0].tokens)} tokens",
                          do="Use a smaller max_length, another dtype, or a larger device.")
                ) from error  # fmt: skip
            torch.cuda.empty_cache()
            middle = len(prompts) // 2
            return self.run(prompts[:middle], settings) + self.run(prompts[middle:], settings)
        return [self._text(row.new, stops) for row in rows]

    def _row(self, position: int, prompt: Prompt) -> Row:
        assert prompt.tokens is not None
        row = Row(position, prompt.tokens, prompt.seed)
        if prompt.seed is not None:
            digest = hashlib.sha256(repr((prompt.tokens, prompt.seed)).encode()).digest()
            row.generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return row

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
        state = self._prefill(rows)
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
            if row.new[-1] in self.ends or len(row.new) >= settings.max_tokens:
                return True
            recent = self.tokenizer.decode(row.new[-tail:], skip_special_tokens=True)
            if not any(stop in recent for stop in named):
                return False
            text = self.tokenizer.decode(row.new, skip_special_tokens=True)
            if self.think_end and self.think_end not in text:
                return False
            return is_final(without_thoughts(text, self.think_end), named)

        return done

    def _prefill(self, rows: list[Row]) -> State:
        """Keys and values of all prompts: the prefix that they share once, the rest left-padded."""
        shared = _shared_prefix([row.tokens for row in rows])
        cache = new_cache()
        mask = torch.ones((len(rows), shared), dtype=torch.long, device=self.device)
        if shared:
            head = torch.tensor([rows[0].tokens[:shared]], device=self.device)
            self._call(head, torch.ones_like(head), torch.arange(shared, device=self.device)[None], cache)
            cache.batch_repeat_interleave(len(rows))
        width = max(len(row.tokens) for row in rows) - shared
        tokens = torch.zeros((len(rows), width), dtype=torch.long)
        fresh = torch.zeros((len(rows), width), dtype=torch.long)
        for i, row in enumerate(rows):
            rest = row.tokens[shared:]
            tokens[i, width - len(rest) :] = torch.tensor(rest)
            fresh[i, width - len(rest) :] = 1
        mask = torch.cat([mask, fresh.to(self.device)], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, shared:]
        logits = self._call(tokens.to(self.device), mask, positions, cache)
        return State(list(rows), cache, mask, logits)

    def _step(self, state: State) -> None:
        last = torch.tensor([[row.new[-1]] for row in state.rows], device=self.device)
        state.mask = torch.cat([state.mask, torch.ones_like(state.mask[:, :1])], dim=1)
        positions = (state.mask.sum(1) - 1)[:, None]
        state.logits = self._call(last, state.mask, positions, state.cache)

    def _call(self, tokens: Any, mask: Any, positions: Any, cache: Any) -> torch.Tensor:
        """Logits [batch, vocabulary] of the last column."""
        output = self.model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1,
            **{self._cache: cache},
        )  # fmt: skip
        for name, count in (("tokens_forwarded", tokens.numel()), ("forward_passes", 1)):
            self.work[name] = self.work.get(name, 0) + count
        logits: torch.Tensor = output.logits[:, -1].float()
        if torch.isnan(logits).any():
            raise EvaluationError(
                Fault("logits", "the model gives NaN", "numbers", "Look for NaN in the merged weights, or use float32.")
            )
        return logits

    def _append(self, state: State, settings: Settings) -> None:
        if not settings.sampled:
            chosen = state.logits.argmax(-1).tolist()
        else:
            scores = warped(state.logits, {**self.defaults, **settings.options}).cpu()
            chosen = [
                int(torch.multinomial(probabilities, 1, generator=row.generator))
                for probabilities, row in zip(scores, state.rows, strict=True)
            ]
        for row, token in zip(state.rows, chosen, strict=True):
            row.new.append(token)


@dataclass(slots=True)
class State:
    """A batch in flight: rows, their keys and values, mask [rows, length], next logits [rows, vocabulary]."""

    rows: list[Row]
    cache: Any
    mask: torch.Tensor
    logits: torch.Tensor

    def select(self, keep: list[int]) -> None:
        """Drop the other rows, and columns that only padding is left of."""
        index = torch.tensor(keep, device=self.mask.device)
        self.rows = [self.rows[i] for i in keep]
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]


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


def _shared_prefix(rows: Sequence[tuple[int, ...]]) -> int:
    """Length of the prefix of all rows that is worth computing once; every row keeps at least one token of its own."""
    if len(rows) < 2:
        return 0
    first = np.array(rows[0])
    length = min(map(len, rows)) - 1
    for row in rows[1:]:
        differs = np.array(row[:length]) != first[:length]
        length = int(differs.argmax()) if differs.any() else length
    return length if length >= _SHARED_LEAST else 0


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    found = own if isinstance(own, list) else [own]
    return frozenset(i for i in (*found, tokenizer.eos_token_id) if i is not None)


def _sampling_defaults(model: Any) -> dict[str, float]:
    """What the model's own generation settings say about sampling (the library's default is 50 for top_k)."""
    config = getattr(model, "generation_config", None)
    found = {name: getattr(config, name, None) for name in ("top_k", "top_p", "min_p")}
    return {"top_k": 50.0, **{name: float(value) for name, value in found.items() if value is not None}}
