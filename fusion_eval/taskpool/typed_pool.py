"""What the package's own task pools share: devices, and a report that is made of typed results."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from fusion_eval.errors import DataError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.loop import Batches, Step, evaluate_rows
from fusion_eval.evaluation.rows import Rows
from fusion_eval.log import get_rankzero_logger
from fusion_eval.mixins import LightningFabricMixin
from fusion_eval.report.values import ModelResult, TaskResult
from fusion_eval.taskpool.base_pool import BaseTaskPool
from fusion_eval.utils.parameters import count_parameters

log = get_rankzero_logger(__name__)

Measurements = tuple[Mapping[str, float], list[TaskResult]]
"""Parameter counts, and what was found on every task."""

_Opened = TypeVar("_Opened")


class TypedTaskPool(LightningFabricMixin, BaseTaskPool):
    """A task pool whose results are typed: it measures, from which `results` and `evaluate` follow."""

    @property
    def devices(self) -> Devices:
        """Where evaluation runs: the program's devices, or those of the pool's own Fabric when it is used alone."""
        if self._fabric is None and self._program is not None:
            return self._program.devices  # type: ignore[no-any-return]
        return Devices.of(self.fabric)

    def results(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        name: str = "model",
        role: str = "merged",
        tasks: Sequence[str] | None = None,
    ) -> ModelResult:
        """The typed results on the given tasks (all by default); equal on all ranks but for the items' columns.

        Args:
            model: one model, or one per task.
            name: the model's name in the report.
            role: "base", "expert" or "merged".
            tasks: which tasks to evaluate.
        """
        start = time.perf_counter()
        info, found = self._measured(model, name, role, tasks)
        return self._whole(ModelResult(name, role, tuple(found), info, time.perf_counter() - start))

    def _whole(self, result: ModelResult) -> ModelResult:
        """The result with what follows from its tasks together."""
        return result

    @abstractmethod
    def _measured(
        self, model: nn.Module | Mapping[str, nn.Module], name: str, role: str, tasks: Sequence[str] | None
    ) -> Measurements:
        """The parameter counts of the (first) model, and the result of every task."""

    def evaluate(self, model: nn.Module | Mapping[str, nn.Module], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`model_info`, the metrics of every task, and their `average`."""
        report = self.results(model, *args, **kwargs).as_dict()
        log.info("Evaluation result: %s", report)
        return report


class DataSetTaskPool(TypedTaskPool):
    """A pool with one data set for each task, of which fewer items may be evaluated."""

    _test_datasets: Mapping[str, Any]
    limit: int | None
    fast_dev_run: bool

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks, in order."""
        return tuple(self._test_datasets)

    def restrict(self, limit: int | None, fast_dev_run: bool) -> None:
        """Evaluate only the first `limit` items, or one batch, of each task, on top of what the pool says itself."""
        limits = [size for size in (limit, self.limit) if size is not None]
        self.limit = min(limits) if limits else None
        self.fast_dev_run = self.fast_dev_run or fast_dev_run

    def _open_all(self, open_one: Callable[[str, Any], _Opened]) -> dict[str, _Opened]:
        """Every task's data set opened.

        Raises:
            DataError: with the faults of all that cannot be.
        """
        found: dict[str, _Opened] = {}
        faults: list[Fault] = []
        for name, node in self._test_datasets.items():
            try:
                found[name] = open_one(name, node)
            except FusionEvalError as error:
                faults += error.faults
        if faults:
            raise DataError(*faults)
        return found

    def _measured(
        self, model: nn.Module | Mapping[str, nn.Module], name: str, role: str, tasks: Sequence[str] | None
    ) -> Measurements:
        self.setup()
        info: dict[str, float] = {}
        found: list[TaskResult] = []
        for task in self.task_names if tasks is None else tasks:
            current = model[task] if isinstance(model, Mapping) else model
            info = info or model_info(current)
            found.append(self._evaluated(self.devices.place(current), task, name))
        return info, found

    @abstractmethod
    def _evaluated(self, model: nn.Module, task: str, who: str) -> TaskResult:
        """The result of one task, whose data are open."""


def evaluated(
    pool: TypedTaskPool, model: nn.Module, loader: Batches, step: Step, scored: Callable[[Rows], TaskResult], who: str
) -> TaskResult:
    """A model's result on one task; on ranks other than zero without what is kept of every item.

    Raises:
        FusionEvalError: what the model, the data or the metrics cannot do, on every rank and with the model's name.
    """
    devices = pool.devices
    try:
        rows = evaluate_rows(model, loader, step, devices, pool.progress)
        result: TaskResult | FusionEvalError | None = None
        if rows is not None:
            try:
                result = scored(rows)
            except FusionEvalError as error:
                result = error
        sent = replace(result, items={}, forms={}) if isinstance(result, TaskResult) else result
        agreed = devices.broadcast(sent)
        if isinstance(agreed, FusionEvalError):
            raise agreed
    except FusionEvalError as error:
        raise type(error)(*(replace(f, where=f"model '{who}', {f.where}") for f in error.faults)) from error
    assert agreed is not None
    return result if isinstance(result, TaskResult) else agreed


def model_info(model: nn.Module) -> dict[str, float]:
    """Parameter counts, as the report names them."""
    trainable, total = count_parameters(model)
    return {
        "trainable_params": trainable,
        "all_params": total,
        "trainable_percentage": trainable / total if total else 0.0,
    }
