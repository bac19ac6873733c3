"""The Riemannian mean on the sphere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Karcher as KarcherStep


class Karcher(PipelineMethod):
    """The Karcher mean of the tensors' directions, times their mean norm. Karcher, CPAM 1977.

    m = sum u_t normalised; repeat: tau = (1/N) sum (w_t / sin w_t)(u_t - cos w_t m), m = m cos|tau| + tau sin|tau| /
    |tau|.

    Args:
        max_iter: iterations at most.
        tol: the length of a step at which to stop.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False

    def __init__(
        self,
        max_iter: int = 10,
        tol: float = 1e-5,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([KarcherStep(max_iter, tol)], tensors=tensors, origin="none")
