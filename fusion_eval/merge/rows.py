"""A checkpoint in another's vocabulary: rows of tokens that it lacks are the other's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.views import Part, View
from fusion_eval.merge.vocabulary import MISSING


class RowsFrom(View):
    """A model whose embeddings have a row per token of another model.

    Args:
        inner: the model.
        order: for each row of the other model the row here, or -1 where this model lacks the token.
        others: {tensor name here: the other model's tensor}, for tensors that have a row per token.
    """

    def __init__(self, inner: Checkpoint, order: Tensor, others: Mapping[str, Part]) -> None:
        super().__init__(inner, "in another vocabulary")
        self._order, self._others = order.long(), dict(others)
        self._absent = torch.nonzero(self._order == MISSING).reshape(-1)

    def read(self, name: str) -> Tensor:
        """The tensor; with a row per token of the other model."""
        other = self._others.get(name)
        if other is None:
            return self._inner.read(name)
        own = self._inner.read(name)
        moved = own.index_select(0, self._order.clamp(min=0))
        rows = other.checkpoint.read(other.name).index_select(0, self._absent)
        return moved.index_copy_(0, self._absent, rows.to(own.dtype))

    def spec(self, name: str) -> TensorSpec:
        """The shape with the other model's number of rows."""
        spec = self._inner.spec(name)
        return TensorSpec((self._order.numel(), *spec.shape[1:]), spec.dtype) if name in self._others else spec

    def working_bytes(self, name: str) -> int:
        """A copy, and the other model's tensor, for tensors with a row per token."""
        if name not in self._others:
            return self._inner.working_bytes(name)
        return 2 * self.spec(name).nbytes + self._inner.working_bytes(name)

    def key(self) -> str | None:
        """The keys of both models and the order."""
        inner = super().key()
        keys = [other.checkpoint.key() for other in self._others.values()]
        if inner is None or None in keys:
            return None
        names = {name: other.name for name, other in self._others.items()}
        return f"{inner}|{keys}|{names}|{hash(tuple(self._order.tolist()))}"
