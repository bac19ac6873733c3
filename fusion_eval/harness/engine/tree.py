"""Forward passes over trees of tokens, with the keys and values of shared prefixes kept."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.harness.engine.kv import cache_keyword, crop, layers_of, new_cache
from fusion_eval.harness.engine.trie import Branch, Budget, Item, Pack, build_pack, trees_of

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
Layers = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Passed:
    """A tree after its forward pass.

    Args:
        items: its sequences.
        pack: its tokens.
        rows: numbers of the tokens whose logits were computed, ascending.
        logits: of those [rows, vocabulary].
        layers: keys and values of the prefix and of all tokens; None where nobody asked for them.
        base: length of the prefix.
    """

    items: Sequence[Item]
    pack: Pack
    rows: Array
    logits: torch.Tensor
    layers: Layers | None
    base: int


Take = Callable[[Passed], None]


class TreeRunner:
    """Runs branches of a plan through a decoder.

    Args:
        model: a Hugging Face causal language model in eval mode.
        budget: of one pass; halved when memory runs out.
        work: counters to add to.
    """

    def __init__(self, model: Any, budget: Budget, work: dict[str, float]) -> None:
        self.model = model
        self.budget = budget
        self.work = work
        self.device = next(model.parameters()).device
        self.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        parameters = inspect.signature(model.forward).parameters
        self._cache = cache_keyword(model)
        self._keeps_logits = "logits_to_keep" in parameters
        self.takes_positions = "position_ids" in parameters
        self._after: Callable[[], None] | None = None

    def run(
        self, branch: Branch, take: Take, keep_cache: bool = False, after: Callable[[], None] | None = None
    ) -> None:
        """Every pack of a branch, and `take` after each.

        Args:
            branch: the plan.
            take: what to do with each tree.
            keep_cache: `take` wants keys and values.
            after: called when a pack is done.

        Raises:
            EvaluationError: not enough memory for one sequence.
        """
        self._after = after
        self._branch(branch, None, take, keep_cache)

    def _branch(self, branch: Branch, cache: Any, take: Take, keep: bool) -> None:
        if len(branch.extend):
            cache = cache if cache is not None else new_cache()
            self._prefill(branch.extend, branch.depth - len(branch.extend), cache)
        for pack in branch.packs:
            self._pack(pack, branch.depth, cache, take, keep)
            if self._after is not None:
                self._after()
        for below in branch.branches:
            self._branch(below, cache, take, keep)
            cache = self._cropped(cache, branch.depth)

    def _cropped(self, cache: Any, depth: int) -> Any:
        if cache is None or depth == 0:
            return None
        crop(cache, depth)
        return cache

    def _prefill(self, tokens: Array, base: int, cache: Any) -> None:
        """Keys and values of a prefix; no logits but one row that the model insists on."""
        size = max(self.budget.tokens, 256)
        for start in range(0, len(tokens), size):
            part = tokens[start : start + size]
            n, before = len(part), base + start
            self.forward(part, np.arange(before, before + n), np.tri(n, dtype=bool), before, cache, np.array([n - 1]))

    def _pack(self, items: list[Item], base: int, cache: Any, take: Take, keep: bool) -> None:
        try:
            packs = [(tree, build_pack(tree, base)) for tree in ([items] if base else trees_of(items))]
            if len(packs) == 1:
                self._single(*packs[0], base, cache, take, keep)
            else:
                self._several(packs, take, keep)
        except torch.OutOfMemoryError as error:
            self._cropped(cache, base)
            self._halve(items, error)
            middle = len(items) // 2
            self._pack(items[:middle], base, cache, take, keep)
            self._pack(items[middle:], base, cache, take, keep)
        self._cropped(cache, base)

    def _halve(self, items: Sequence[Item], error: BaseException) -> None:
        if len(items) == 1:
            raise out_of_memory(len(items[0].tokens)) from error
        torch.cuda.empty_cache()
        self.budget = Budget(max(64, self.budget.tokens // 2), max(64, self.budget.rows // 2))
        logger.warning("out of memory: passes of %d tokens from here on", self.budget.tokens)

    def _single(self, items: list[Item], pack: Pack, base: int, cache: Any, take: Take, keep: bool) -> None:
        rows = np.unique(np.concatenate(pack.paths))
        own = cache if cache is not None or not keep else new_cache()
        logits = self.forward(pack.tokens, pack.positions, pack.sees, base, own, rows)
        take(Passed(items, pack, rows, logits, layers_of(own) if keep else None, base))

    def _several(self, packs: Sequence[tuple[list[Item], Pack]], take: Take, keep: bool) -> None:
        """Trees as rows of a batch: chains begin together, others end together, so that few columns count."""
        width = max(len(pack.tokens) for _, pack in packs)
        causal = all(pack.is_chain for _, pack in packs)
        starts = [0 if causal else width - len(pack.tokens) for _, pack in packs]
        tokens, places, mask = self._batch([pack for _, pack in packs], starts, width, causal)
        rows = [np.unique(np.concatenate(pack.paths)) for _, pack in packs]
        columns = np.unique(np.concatenate([start + own for start, own in zip(starts, rows, strict=True)]))
        cache = new_cache() if keep else None
        logits = self._call(tokens, places, mask, cache, columns)
        layers = layers_of(cache) if keep else None
        for row, ((items, pack), start, own) in enumerate(zip(packs, starts, rows, strict=True)):
            span = slice(start, start + len(pack.tokens))
            part = [(k[row : row + 1, :, span], v[row : row + 1, :, span]) for k, v in layers] if layers else None
            index = torch.from_numpy(np.searchsorted(columns, start + own)).to(logits.device)
            take(Passed(items, pack, own, logits[row, index], part, 0))

    def _batch(
        self, packs: Sequence[Pack], starts: Sequence[int], width: int, causal: bool
    ) -> tuple[Array, Array, Any]:
        """Tokens and positions [rows, width], and the mask that chains do without."""
        tokens = np.zeros((len(packs), width), dtype=np.int64)
        places = np.tile(np.arange(width) if causal else np.zeros(width, dtype=np.int64), (len(packs), 1))
        sees = np.zeros((0 if causal else len(packs), width, width), dtype=bool)
        for row, (pack, start) in enumerate(zip(packs, starts, strict=True)):
            span = slice(start, start + len(pack.tokens))
            tokens[row, span] = pack.tokens
            if not causal:
                places[row, span] = pack.positions
                sees[row, span, span] = pack.sees
        return tokens, places, None if causal else self._mask(sees)

    def forward(self, tokens: Array, positions: Array, sees: Array, base: int, cache: Any, rows: Array) -> torch.Tensor:
        """Logits [rows, vocabulary] of one pass over a tree; the cache, where given, grows by its tokens."""
        visible = np.concatenate([np.ones((len(tokens), base), dtype=bool), sees], axis=1)
        return self._call(tokens[None], positions[None], self._mask(visible[None]), cache, rows)[0]

    def _mask(self, visible: Array) -> torch.Tensor:
        """What is added to attention [batch, 1, tokens, tokens before and among them]."""
        hidden = torch.from_numpy(~visible)[:, None].to(self.device)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)

    def _call(self, tokens: Array, positions: Array, mask: Any, cache: Any, columns: Array) -> torch.Tensor:
        """Logits [batch, columns, vocabulary]."""
        wanted = torch.from_numpy(columns).to(self.device)
        options: dict[str, Any] = {"logits_to_keep": wanted} if self._keeps_logits else {}
        output = self.model(
            input_ids=torch.from_numpy(tokens).to(self.device),
            position_ids=torch.from_numpy(positions).to(self.device),
            attention_mask=mask, use_cache=cache is not None, **{self._cache: cache}, **options,
        )  # fmt: skip
        self.count(tokens.size)
        logits: torch.Tensor = output.logits if self._keeps_logits else output.logits[:, wanted]
        return logits

    def count(self, tokens: int) -> None:
        """Note one pass over so many tokens."""
        self.work["tokens_forwarded"] = self.work.get("tokens_forwarded", 0) + tokens
        self.work["forward_passes"] = self.work.get("forward_passes", 0) + 1


def out_of_memory(tokens: int) -> EvaluationError:
    """The error of one sequence that does not fit."""
    return EvaluationError(
        Fault("memory", f"does not suffice for one sequence of {tokens} tokens",
              do="Use a smaller max_length, another dtype, or a larger device.")
    )  # fmt: skip


def check_finite(values: torch.Tensor) -> None:
    """Refuse scores that are not numbers.

    Raises:
        EvaluationError: NaN.
    """
    if torch.isnan(values).any():
        raise EvaluationError(
            Fault("logits", "the model gives NaN", "numbers", "Look for NaN in the merged weights, or use float32.")
        )
