"""Localize-and-Stitch without data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Scale, Stitch, Trim


class LocalizeAndStitch(PipelineMethod):
    """theta_0 + lambda sum_t m_t tau_t / sum_t m_t, m_t the largest entries of the whole tau_t.

    Localize-and-Stitch, arXiv:2408.13656. The variant without data (section 3.3); with data the masks are learnt.

    Args:
        density: the share of entries to keep.
        scaling: lambda.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.05,
        scaling: Setting = 1.0,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Trim(density), Stitch(), Scale(scaling)], tensors=tensors)
