"""EMR-Merging: elect, mask and rescale; a model per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import TensorGroup
from fusion_eval.merge.per_task import Parts, packed
from fusion_eval.method.per_task import PerTaskMethod, SelectiveEncoder, merged_vector, task_vector
from fusion_eval.method.pipeline import Flow, PipelineMethod, PoolView
from fusion_eval.method.selection import Tensors
from fusion_eval.method.step import Step, Unify
from fusion_eval.method.step.base import choice_faults


class Emr(PerTaskMethod):
    """theta_0 + l_t m_t * u for task t: a unified vector, a mask and a number per task. EMR-Merging, arXiv:2405.17461.

    u = sgn(sum tau_t) max |tau_t| over that sign; m_t = [tau_t u > 0]; l_t = sum |tau_t| / sum |m_t u|.

    Args:
        steps: what unifies the task vectors; None: EMR's election. TSV-M's steps give EMR over TSV.
        rescale: the sums of l_t run over `entries` (the paper's), or add each tensor's mean (`tensors`).
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        steps: Sequence[Step] | None = None,
        rescale: str = "entries",
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(choice_faults("method.rescale", rescale, ("entries", "tensors")), tensors)
        self.unify = PipelineMethod(steps or [Unify()], tensors=tensors)
        self.rescale = rescale

    def encoder(self, pool: AlignedPool) -> EmrEncoder:
        """The encoder with each task's number, from a pass over the pool."""
        flow = self.unify.bind(pool)
        before, after = [0.0] * len(pool.experts), [0.0] * len(pool.experts)
        for name in PoolView(pool, flow).names:
            group = pool.group(name)
            unified, vectors = merged_vector(flow, group), group.deltas()
            size = max(1, unified.numel()) if self.rescale == "tensors" else 1
            for index, vector in enumerate(vectors):
                before[index] += _sum(vector) / size
                after[index] += _sum(unified * (vector * unified > 0)) / size
        return EmrEncoder(self.tensors, flow, [b / a if a > 0 else 1.0 for b, a in zip(before, after, strict=True)])


class EmrEncoder(SelectiveEncoder):
    """The unified vector, and a mask and a number per task."""

    def __init__(self, tensors: Tensors, flow: Flow, scales: Sequence[float]) -> None:
        super().__init__(tensors)
        self.flow, self.scales = flow, scales

    def share(self, group: TensorGroup) -> Parts:
        """The unified vector."""
        return {"delta": merged_vector(self.flow, group)}

    def give(self, group: TensorGroup, index: int, shared: Parts) -> Parts:
        """Where the task agrees with the unified vector's sign, and the rescaling number."""
        mask = task_vector(group, index) * shared["delta"] > 0
        return {"bits": packed(mask), "scale": torch.tensor(self.scales[index], dtype=torch.float64)}


def _sum(vector: Tensor) -> float:
    return float(vector.abs().sum(dtype=torch.float64))
