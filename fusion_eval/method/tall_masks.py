"""TALL masks: a model per task by masks on the merged vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import TensorGroup
from fusion_eval.merge.per_task import Parts, packed
from fusion_eval.merge.setting import Range, setting_faults
from fusion_eval.merge.steps_combine import localized
from fusion_eval.method.per_task import PerTaskMethod, SelectiveEncoder, merged_vector, task_vector
from fusion_eval.method.pipeline import Flow, PipelineMethod
from fusion_eval.method.selection import Tensors
from fusion_eval.method.step import Step, Sum


class TallMasks(PerTaskMethod):
    """theta_0 + m_t * tau for task t, m_t = [|tau_t| > lambda |tau - tau_t|]. TALL masks, arXiv:2405.07813, eq. 3.

    Args:
        mask_threshold: lambda.
        steps: what merges the task vectors to tau; None: their sum.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        mask_threshold: float = 0.6,
        steps: Sequence[Step] | None = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(setting_faults("method.mask_threshold", mask_threshold, Range(0)), tensors)
        self.mask_threshold = mask_threshold
        self.merge = PipelineMethod(steps or [Sum()], tensors=tensors)

    def encoder(self, pool: AlignedPool) -> MaskEncoder:
        """The encoder."""
        return MaskEncoder(self.tensors, self.merge.bind(pool), self.mask_threshold)


class MaskEncoder(SelectiveEncoder):
    """The merged vector, and a mask per task."""

    def __init__(self, tensors: Tensors, flow: Flow, threshold: float) -> None:
        super().__init__(tensors)
        self.flow, self.threshold = flow, threshold

    def share(self, group: TensorGroup) -> Parts:
        """The merged vector."""
        return {"delta": merged_vector(self.flow, group)}

    def give(self, group: TensorGroup, index: int, shared: Parts) -> Parts:
        """Where the merged vector is the task's own."""
        mask = localized(task_vector(group, index), shared["delta"], self.threshold)
        return {"bits": packed(mask), "scale": torch.tensor(1.0)}
