"""Evaluate the models of a pool, without merging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fusion_eval.errors import Fault, did_you_mean, listed
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.program.base_program import BaseProgram
from fusion_eval.report.values import ModelResult
from fusion_eval.taskpool.base_pool import BaseTaskPool


class EvaluateProgram(BaseProgram):
    """Evaluate each model of a pool on every task.

    Args:
        modelpool: the models.
        taskpool: the tasks.
        models: names of the models to evaluate; by default all.
        **kwargs: see `BaseProgram`.
    """

    def __init__(
        self, modelpool: BaseModelPool, taskpool: BaseTaskPool, *, models: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(modelpool, taskpool, **kwargs)
        self.models = modelpool.names if models is None else (models,) if isinstance(models, str) else tuple(models)

    def faults(self) -> list[Fault]:
        """Models that the pool does not have."""
        names = self.modelpool.names
        if not self.models:
            return [Fault("program.models", "no models", f"some of {listed(names, 20)}")]
        return [
            Fault("program.models", f"no model '{name}'", f"some of {listed(names, 20)}", did_you_mean(name, names))
            for name in self.models
            if name not in names
        ]

    def work(self) -> Iterator[ModelResult]:
        """Every model, in order."""
        for name in self.models:
            yield self.evaluate_stored(name, "base" if name == self.modelpool.base_name else "expert")
