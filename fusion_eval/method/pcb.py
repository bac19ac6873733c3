"""PCB-Merging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Balance, Scale


class Pcb(PipelineMethod):
    """Weigh entries by intra- and inter-balancing scores, drop the low ones.

    Parameter competition balancing, arXiv:2410.02396. b_t = exp(N n(|tau_t|)^2) tanh(tau_t sum_j tau_j), cut to its
    largest and normalised; theta_0 + lambda sum b_t tau_t / sum b_t. (The authors' program; the paper writes softmax
    for both, whose denominators cancel in the normalisation.)

    Args:
        density: the share of highest scores that count.
        scaling: lambda.
        clip: the share of smallest and of largest magnitudes that are clipped.
        scope: rank over the whole `model` (the paper's) or within each `tensor`.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: float = 0.1,
        scaling: Setting = 1.0,
        clip: float = 1e-4,
        scope: str = "model",
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Balance(density, clip, scope), Scale(scaling)], tensors=tensors)
