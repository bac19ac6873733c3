"""Model recombination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Recombine


class ModelRecombination(PipelineMethod):
    """Each layer from an expert drawn at random, without replacement over the N results. FedMR, arXiv:2305.10730.

    Args:
        model: which of the N recombined models.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False

    def __init__(
        self,
        model: int = 0,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Recombine(model)], tensors=tensors, origin="none")
