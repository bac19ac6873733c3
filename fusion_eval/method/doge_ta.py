"""DOGE-TA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import ModifiedTaskVectors, Scale


class DogeTa(PipelineMethod):
    """theta_0 + lambda sum_t s_t m_t (tau_t + Delta).

    Modeling multi-task model merging as adaptive projective gradient descent. arXiv:2501.01230. s_t = eta / |tau_t| per
    tensor, m_t the largest entries of the whole tau_t, Delta by Adam on sum_j |rowsum(tau_j * (tau_j - sum_t s_t (tau_t
    + Delta)))|^2 outside of the tasks' shared subspace.

    Args:
        scaling: lambda.
        eta: the weight of a task vector is eta / its norm.
        density: the share of entries that count.
        subspace: the shared subspace has 1/subspace of the rank.
        steps: Adam's steps.
        lr: its learning rate.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 1.0,
        eta: float = 0.07,
        density: float = 0.3,
        subspace: int = 6,
        steps: int = 400,
        lr: float = 1e-4,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([ModifiedTaskVectors(subspace, density, eta, steps, lr), Scale(scaling)], tensors=tensors)
