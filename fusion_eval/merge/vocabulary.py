"""Checkpoints whose vocabulary is put in another order: rows of embeddings and heads are moved when they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fusion_eval.errors import AlignmentError, Fault
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.views import View

Fill = Callable[[str], Tensor]
"""The entries, along the vocabulary's axis, of the tokens that a model lacks: one per -1 of the order, in order."""

MISSING = -1


class Permuted(View):
    """A checkpoint in another vocabulary.

    Args:
        inner: the model.
        order: for each token of the new vocabulary its id in the model, or -1 where the model lacks it.
        axes: {tensor name: axis} of tensors that have an entry per token.
        fill: makes the entries of missing tokens; zeros without it.
        fill_key: what identifies the entries that `fill` makes, or None if nothing does.

    Raises:
        AlignmentError: a tensor is not there, or has fewer entries than the order needs.
    """

    def __init__(
        self,
        inner: Checkpoint,
        order: Tensor,
        axes: Mapping[str, int],
        fill: Fill | None = None,
        fill_key: str | None = None,
    ) -> None:
        super().__init__(inner, "in another vocabulary")
        self._order, self._axes, self._fill, self._fill_key = order.long(), dict(axes), fill, fill_key
        faults = [fault for name, axis in self._axes.items() if (fault := self._fault(name, axis)) is not None]
        if faults:
            raise AlignmentError(*faults)
        self._absent = torch.nonzero(self._order == MISSING).reshape(-1)
        self._present = self._order.clamp(min=0)

    def read(self, name: str) -> Tensor:
        """The tensor with its entries moved."""
        tensor = self._inner.read(name)
        axis = self._axes.get(name)
        if axis is None:
            return tensor
        moved = tensor.index_select(axis, self._present)
        if self._absent.numel():
            shape = list(moved.shape)
            shape[axis] = self._absent.numel()
            entries = torch.zeros(shape) if self._fill is None else self._fill(name)
            moved.index_copy_(axis, self._absent, entries.to(moved.dtype))
        return moved

    def spec(self, name: str) -> TensorSpec:
        """The shape in the new vocabulary."""
        spec, axis = self._inner.spec(name), self._axes.get(name)
        if axis is None:
            return spec
        shape = (*spec.shape[:axis], self._order.numel(), *spec.shape[axis + 1 :])
        return TensorSpec(shape, spec.dtype)

    def working_bytes(self, name: str) -> int:
        """A copy, for tensors with an entry per token."""
        return (self.spec(name).nbytes if name in self._axes else 0) + self._inner.working_bytes(name)

    def key(self) -> str | None:
        """The model's key, the order and the key of the entries that are filled in; None where one is unknown."""
        filled = "" if self._fill is None or not self._absent.numel() else self._fill_key
        inner = super().key()
        if inner is None or filled is None:
            return None
        order = hashlib.sha256(repr(self._order.tolist()).encode()).hexdigest()
        return f"{inner}|{order}|{self._axes}|{filled}"

    def _fault(self, name: str, axis: int) -> Fault | None:
        if name not in self._inner:
            return Fault(self._inner.source, f"no tensor '{name}'", "a tensor with an entry per token")
        shape, highest = self._inner.spec(name).shape, int(self._order.max()) if self._order.numel() else -1
        if not 0 <= axis < len(shape) or shape[axis] <= highest:
            found = f"shape {shape} with the vocabulary at axis {axis}"
            return Fault(f"{self._inner.source}, tensor '{name}'", found, f"at least {highest + 1} entries there")
        return None
