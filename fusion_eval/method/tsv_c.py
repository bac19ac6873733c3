"""TSV-Compress: a model per task by a few singular vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import TensorGroup
from fusion_eval.merge.per_task import Parts
from fusion_eval.merge.setting import setting_faults
from fusion_eval.merge.steps_spectral import leading_svd
from fusion_eval.method.per_task import PerTaskMethod, SelectiveEncoder, task_vector
from fusion_eval.method.selection import Tensors
from fusion_eval.method.step.sparsify import DENSITY


class TsvC(PerTaskMethod):
    """theta_0 + U_t diag(S_t) V_t cut to its first directions. Task singular vectors (TSV-C), arXiv:2412.00081.

    Tensors that are no matrices are kept whole.

    Args:
        rank: the share of directions that each task keeps; None: 1/N.
        tensors: which tensors are compressed and what the others become.
    """

    def __init__(self, rank: float | None = None, tensors: Mapping[str, Any] | None = None) -> None:
        super().__init__([] if rank is None else setting_faults("method.rank", rank, DENSITY), tensors)
        self.rank = rank

    def encoder(self, pool: AlignedPool) -> LowRankEncoder:
        """The encoder."""
        return LowRankEncoder(self.tensors, 1 / len(pool.experts) if self.rank is None else self.rank)


class LowRankEncoder(SelectiveEncoder):
    """Nothing shared; a cut decomposition per task."""

    def __init__(self, tensors: Tensors, share: float) -> None:
        super().__init__(tensors)
        self.rank_share = share

    def share(self, group: TensorGroup) -> Parts:
        """Nothing."""
        return {}

    def give(self, group: TensorGroup, index: int, shared: Parts) -> Parts:
        """The leading directions of a matrix; any other task vector whole."""
        vector = task_vector(group, index)
        if vector.dim() > 2 and self.tensors.kernels == "flatten":
            vector = vector.reshape(vector.shape[0], -1)
        if vector.dim() != 2 or not vector.numel() or self.tensors.is_table(group.name):
            return {"delta": vector}
        part = leading_svd(vector, max(1, int(self.rank_share * min(vector.shape))))
        return {key: value.to(vector.dtype) for key, value in part._asdict().items()}
