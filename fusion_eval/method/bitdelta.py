"""BitDelta: a model per task by the signs of its task vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import TensorGroup
from fusion_eval.merge.per_task import Parts, packed
from fusion_eval.method.per_task import PerTaskMethod, SelectiveEncoder, task_vector
from fusion_eval.method.selection import Tensors


class BitDelta(PerTaskMethod):
    """theta_0 + a_t sgn(tau_t), a_t = mean |tau_t| per matrix, which is nearest to tau_t. BitDelta, arXiv:2402.10193.

    The scales are the paper's before its distillation on data. Tensors that are no matrices are kept whole.

    Args:
        tensors: which tensors are compressed and what the others become.
    """

    def __init__(self, tensors: Mapping[str, Any] | None = None) -> None:
        super().__init__([], tensors)

    def encoder(self, pool: AlignedPool) -> SignEncoder:
        """The encoder."""
        return SignEncoder(self.tensors)


class SignEncoder(SelectiveEncoder):
    """Nothing shared; signs and a scale per task."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__(tensors)

    def share(self, group: TensorGroup) -> Parts:
        """Nothing."""
        return {}

    def give(self, group: TensorGroup, index: int, shared: Parts) -> Parts:
        """The signs (0 counts as negative) and the mean magnitude of a matrix; any other task vector whole."""
        vector = task_vector(group, index)
        if vector.dim() != 2 or not vector.numel() or self.tensors.is_table(group.name):
            return {"delta": vector}
        return {"bits": packed(vector > 0), "scale": vector.abs().mean()}
