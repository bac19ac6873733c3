"""Prefill of prompts as one tree: what they share is computed once, nothing is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fusion_eval.harness.engine.kv import growing_cache, layers_of
from fusion_eval.harness.engine.tree import TreeRunner, check_finite
from fusion_eval.harness.engine.trie import Item, Pack, Planner

Layers = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(slots=True)
class Row:
    """One prompt on its way.

    Args:
        position: in the caller's list.
        tokens: the prompt.
        seed: of its sampler; None for greedy text.
        new: tokens written so far.
    """

    position: int
    tokens: tuple[int, ...]
    seed: int | None
    new: list[int] = field(default_factory=list)
    generator: torch.Generator | None = None


@dataclass(slots=True)
class State:
    """A batch in flight: rows, their keys and values, mask [rows, length], next logits [rows, vocabulary]."""

    rows: list[Row]
    cache: Any
    mask: torch.Tensor
    logits: torch.Tensor

    def select(self, keep: list[int]) -> None:
        """Drop the other rows."""
        index = torch.tensor(keep, device=self.mask.device)
        self.rows = [self.rows[i] for i in keep]
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]


def finite(logits: torch.Tensor) -> torch.Tensor:
    """Logits in single precision, refused where they are not numbers."""
    logits = logits.float()
    check_finite(logits)
    return logits


def prefill_tree(runner: TreeRunner, rows: Sequence[Row]) -> State:
    """The state before the first new token of every row."""
    items = [Item(i, np.array(row.tokens, dtype=np.int64), (0,)) for i, row in enumerate(rows)]
    parts: dict[int, Layers] = {}
    logits: dict[int, torch.Tensor] = {}

    def take(done: list[Item], pack: Pack, kept: Any, scores: torch.Tensor, cache: Any, base: int) -> None:
        layers = layers_of(cache)
        before = np.arange(base)
        for item, route, path in zip(done, pack.routes, pack.paths, strict=True):
            index = torch.from_numpy(np.concatenate([before, base + route])).to(scores.device)
            parts[item.position] = [(k[:, :, index], v[:, :, index]) for k, v in layers]
            logits[item.position] = scores[int(np.searchsorted(kept, path[-1]))]

    runner.run(Planner(items, runner.budget).plan(), take, keep_cache=True)
    stacked = finite(torch.stack([logits[i] for i in range(len(rows))]))
    mask = torch.zeros((len(rows), max(len(row.tokens) for row in rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        mask[i, mask.shape[1] - len(row.tokens) :] = 1
    cache = growing_cache(_padded([parts[i] for i in range(len(rows))], mask.shape[1]))
    return State(list(rows), cache, mask.to(stacked.device), stacked)


def _padded(parts: Sequence[Layers], width: int) -> Layers:
    """Keys and values of all rows [rows, heads, width, size], zeros on the left."""
    layers = []
    for number in range(len(parts[0])):
        pair = []
        for side in (0, 1):
            first = parts[0][number][side]
            whole = first.new_zeros((len(parts), first.shape[1], width, first.shape[3]))
            for row, part in enumerate(parts):
                whole[row, :, width - part[number][side].shape[2] :] = part[number][side][0]
            pair.append(whole)
        layers.append((pair[0], pair[1]))
    return layers
