"""The device and the ranks that an evaluation runs on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from fusion_eval.errors import FusionEvalError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_T = TypeVar("_T")
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Devices:
    """This process's device and rank. `Devices()` is one CPU process, which needs no Fabric.

    Args:
        device: where models and batches are put.
        rank: this process among all.
        world: how many processes there are.
        fabric: the Fabric that they come from.
    """

    device: torch.device = _CPU
    rank: int = 0
    world: int = 1
    fabric: Fabric | None = None

    @classmethod
    def of(cls, fabric: Fabric) -> Devices:
        """What a launched Fabric gives."""
        return cls(fabric.device, fabric.global_rank, fabric.world_size, fabric)

    @property
    def is_zero(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def place(self, module: nn.Module) -> nn.Module:
        """The module on the device, not wrapped: evaluation needs no gradient synchronisation."""
        return module.to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that Fabric was given."""
        return nullcontext() if self.fabric is None else self.fabric.autocast()

    def gather(self, item: _T) -> list[_T]:
        """Every rank's item on rank zero, in rank order; an empty list elsewhere."""
        if self.world == 1:
            return [item]
        import torch.distributed as dist

        box: list[Any] | None = [None] * self.world if self.is_zero else None
        dist.gather_object(item, box, dst=0)
        return box or []

    def on_zero(self, work: Callable[[], _T]) -> _T | None:
        """What rank zero's work gives there, None elsewhere; what it fails with is raised on every rank.

        Raises:
            FusionEvalError: rank zero's.
        """
        if self.world == 1:
            return work()
        found: _T | None = None
        failure: FusionEvalError | None = None
        if self.is_zero:
            try:
                found = work()
            except FusionEvalError as error:
                failure = error
        failure = self.broadcast(failure)
        if failure is not None:
            raise failure
        return found

    def on_all(self, work: Callable[[], _T]) -> _T:
        """What rank zero's work gives, on every rank.

        Raises:
            FusionEvalError: rank zero's.
        """
        found = self.on_zero(work)
        return self.broadcast(found)  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier()

    def broadcast(self, item: _T) -> _T:
        """Rank zero's item."""
        if self.world == 1:
            return item
        import torch.distributed as dist

        box = [item]
        dist.broadcast_object_list(box, src=0, device=self.device if self.device.type == "cuda" else None)
        return box[0]
