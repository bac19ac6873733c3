"""What a task pool is: something that turns a model into a report."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from fusion_eval.errors import ConfigError, EvaluationError, Fault
from fusion_eval.mixins import BaseYAMLSerializable
from fusion_eval.report.values import LOWER_IS_BETTER, ModelResult, TaskResult, Value

NOT_TASKS = ("model_info", "average")
"""Keys of a report that are no tasks."""


class BaseTaskPool(BaseYAMLSerializable, ABC):
    """Tasks on which models are evaluated.

    A pool of the user's implements `evaluate`, which returns the nested dictionary of docs/add_a_task_pool.md.
    The package's own pools implement `results` too, which carries errors, item counts and per-item columns.
    """

    _program: Any = None
    _config_key = "taskpool"
    progress: bool = True
    counts_only: ClassVar[bool] = False
    """Whether a checkpoint will do in place of a model, since nothing is run."""

    @abstractmethod
    def evaluate(self, model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Evaluate the model and return `model_info`, one dictionary of metrics per task, and `average`."""

    def setup(self) -> None:
        """Open data sets and build loaders, once; `evaluate` calls it when nobody did."""

    def restrict(self, limit: int | None, fast_dev_run: bool) -> None:
        """Evaluate only the first `limit` items, or one batch, of each task.

        Raises:
            ConfigError: the pool cannot be restricted.
        """
        if limit is not None or fast_dev_run:
            name = type(self).__name__
            raise ConfigError(
                Fault(
                    "limit" if limit is not None else "fast_dev_run",
                    f"set, but {name} evaluates all items",
                    "unset",
                    f"Override {name}.restrict to support it.",
                )
            )

    def use_heads(self, source: Callable[[str], nn.Module | None]) -> None:
        """Take heads from there, where the pool's tasks need heads and have none; by default they need none."""
        return

    def faults(self) -> list[Fault]:
        """What is wrong with the pool's tasks, found before a model is loaded."""
        return []

    def results(
        self,
        model: Any,
        name: str = "model",
        role: str = "merged",
        tasks: Sequence[str] | None = None,
    ) -> ModelResult:
        """The typed result on the given tasks, by default all; here what `evaluate` reports, without item counts.

        Raises:
            EvaluationError: the report is not of the contract's shape, or holds a number that is not finite.
        """
        start = time.perf_counter()
        report = self.evaluate(model)
        lifted = lift(report, name, role, time.perf_counter() - start)
        if tasks is None:
            return lifted
        return replace(lifted, tasks=tuple(task for task in lifted.tasks if task.name in tasks))


def lift(report: Mapping[str, Any], name: str, role: str, seconds: float = 0.0) -> ModelResult:
    """A nested report of plain numbers as a typed result."""
    tasks, faults = [], []
    for task, metrics in report.items():
        if task in NOT_TASKS:
            continue
        if not isinstance(metrics, Mapping):
            faults.append(Fault(f"report of '{name}', task '{task}'", repr(metrics), "a dictionary of metrics"))
            continue
        values = {}
        for metric, number in metrics.items():
            try:
                values[metric] = Value(float(number), higher_is_better=metric not in LOWER_IS_BETTER)
            except (TypeError, ValueError):
                where = f"report of '{name}', task '{task}', metric '{metric}'"
                faults.append(Fault(where, repr(number), "a finite number", "Leave undefined metrics out."))
        tasks.append(TaskResult(task, values, n=0))
    if faults:
        raise EvaluationError(*faults)
    return ModelResult(name, role, tuple(tasks), dict(report.get("model_info", {})), seconds)
