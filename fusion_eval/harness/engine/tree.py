"""Forward passes over trees of tokens, with the keys and values of shared prefixes kept."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.harness.engine.kv import cache_keyword, crop, new_cache
from fusion_eval.harness.engine.trie import Branch, Budget, Item, Pack, build_pack

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
Take = Callable[[list[Item], Pack, Array, torch.Tensor, Any, int], None]
"""Called after each pass: items, their tree, scored token numbers, logits of those, the cache, length of the prefix."""


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

    def run(self, branch: Branch, take: Take, keep_cache: bool = False) -> None:
        """Every pack of a branch, and `take` after each.

        Args:
            branch: the plan.
            take: what to do with each pass.
            keep_cache: `take` wants keys and values of packs without a prefix too.

        Raises:
            EvaluationError: not enough memory for one sequence.
        """
        self._branch(branch, None, take, keep_cache)

    def _branch(self, branch: Branch, cache: Any, take: Take, keep: bool) -> None:
        if len(branch.extend):
            cache = cache if cache is not None else new_cache()
            self._prefill(branch.extend, branch.depth - len(branch.extend), cache)
        for pack in branch.packs:
            self._pack(pack, branch.depth, cache, take, keep)
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
            pack = build_pack(items, base)
            rows = np.unique(np.concatenate(pack.paths))
            own = cache if cache is not None or not keep else new_cache()
            logits = self.forward(pack.tokens, pack.positions, pack.sees, base, own, rows)
            take(items, pack, rows, logits, own, base)
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

    def forward(self, tokens: Array, positions: Array, sees: Array, base: int, cache: Any, rows: Array) -> torch.Tensor:
        """Logits [rows, vocabulary] of one pass over a tree; the cache, where given, grows by its tokens."""
        n = len(tokens)
        visible = torch.from_numpy(np.concatenate([np.ones((n, base), dtype=bool), sees], axis=1)).to(self.device)
        mask = torch.zeros((1, 1, n, base + n), dtype=self.dtype, device=self.device)
        mask.masked_fill_(~visible, torch.finfo(self.dtype).min)
        wanted = torch.from_numpy(rows).to(self.device)
        options: dict[str, Any] = {"logits_to_keep": wanted} if self._keeps_logits else {}
        output = self.model(
            input_ids=torch.from_numpy(tokens)[None].to(self.device),
            position_ids=torch.from_numpy(positions)[None].to(self.device),
            attention_mask=mask, use_cache=cache is not None, **{self._cache: cache}, **options,
        )  # fmt: skip
        self.count(n)
        logits: torch.Tensor = output.logits[0] if self._keeps_logits else output.logits[0, wanted]
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
