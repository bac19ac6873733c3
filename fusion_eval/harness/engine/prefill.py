"""Prefill of prompts as trees: what they share is computed once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fusion_eval.harness.engine.kv import growing_cache
from fusion_eval.harness.engine.tree import Layers, Passed, TreeRunner, check_finite
from fusion_eval.harness.engine.trie import Item, Planner


@dataclass(slots=True)
class Row:
    """One prompt on its way.

    Args:
        position: in the caller's list.
        tokens: the prompt.
        seed: of its sampler; None for greedy text.
        new: tokens written so far.
        room: new tokens that the model takes after the prompt.
        shift: what is added to the number of a token to get its position.
        source: where the prompt comes from, for those who compute its keys and values.
    """

    position: int
    tokens: tuple[int, ...]
    seed: int | None
    new: list[int] = field(default_factory=list)
    generator: torch.Generator | None = None
    room: int = sys.maxsize
    shift: int = 0
    source: Any = None


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


def prefill_tree(runner: TreeRunner, rows: Sequence[Row], new_tokens: int) -> State:
    """The state before the first new token of every row.

    Args:
        runner: of the model.
        rows: the prompts.
        new_tokens: that will be written at most; some room is made for them at once.
    """
    items = [Item(i, np.array(row.tokens, dtype=np.int64), (0,)) for i, row in enumerate(rows)]
    width = max(len(row.tokens) for row in rows)
    room = Room(len(rows), width, min(new_tokens, max(32, width // 4)))
    logits: dict[int, torch.Tensor] = {}

    def take(done: Passed) -> None:
        before = np.arange(done.base)
        for item, route, path in zip(done.items, done.pack.routes, done.pack.paths, strict=True):
            index = torch.from_numpy(np.concatenate([before, done.base + route])).to(done.logits.device)
            room.fill(item.position, done.layers or [], index)
            logits[item.position] = finite(done.logits[int(np.searchsorted(done.rows, path[-1]))])

    runner.run(Planner(items, runner.budget).plan(), take, keep_cache=True)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        mask[i, width - len(row.tokens) :] = 1
    stacked = torch.stack([logits[i] for i in range(len(rows))])
    return State(list(rows), growing_cache(room.layers, width), mask.to(stacked.device), stacked)


class Room:
    """Keys and values of all rows [rows, heads, width + spare, size], each ending at `width`, zeros before it.

    Args:
        rows: how many.
        width: of the longest prompt.
        spare: room for what is written.
    """

    def __init__(self, rows: int, width: int, spare: int) -> None:
        self.rows, self.width, self.spare = rows, width, spare
        self.layers: Layers = []

    def fill(self, row: int, layers: Layers, index: torch.Tensor) -> None:
        """Put a prompt's keys and values in place: those at `index` of the pass."""
        if not self.layers:
            self.layers = [(self._empty(k), self._empty(v)) for k, v in layers]
        start = self.width - len(index)
        for own, found in zip(self.layers, layers, strict=True):
            for whole, part in zip(own, found, strict=True):
                whole[row, :, start : self.width] = part[0, :, index]

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros((self.rows, like.shape[1], self.width + self.spare, like.shape[3]))
