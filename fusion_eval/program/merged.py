"""Merges that give every task a model of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.modelpool.base_pool import BaseModelPool


class TaskModels(Mapping[str, nn.Module]):
    """Models by task, built when they are asked for; the last one is kept.

    Args:
        checkpoints: the merged weights of every task.
        pool: builds models.
    """

    def __init__(self, checkpoints: Mapping[str, Checkpoint], pool: BaseModelPool) -> None:
        self.checkpoints, self.pool = checkpoints, pool
        self._last: tuple[str, nn.Module] | None = None

    def __getitem__(self, task: str) -> nn.Module:
        if self._last is None or self._last[0] != task:
            self._last = None  # free the old one first
            self._last = (task, self.pool.build(self.checkpoints[task]))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.checkpoints)

    def __len__(self) -> int:
        return len(self.checkpoints)
