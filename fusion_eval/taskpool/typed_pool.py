"""What the package's own task pools share: devices, and a report that is made of typed results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from fusion_eval.errors import FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.loop import Batches, Step, evaluate_rows
from fusion_eval.evaluation.rows import Rows
from fusion_eval.log import get_rankzero_logger
from fusion_eval.mixins import LightningFabricMixin
from fusion_eval.report.values import ModelResult, TaskResult
from fusion_eval.taskpool.base_pool import BaseTaskPool
from fusion_eval.utils.parameters import count_parameters

log = get_rankzero_logger(__name__)


class TypedTaskPool(LightningFabricMixin, BaseTaskPool):
    """A task pool whose results are typed: it implements `results`, from which `evaluate` follows."""

    @property
    def devices(self) -> Devices:
        """Where evaluation runs: the program's devices, or those of the pool's own Fabric when it is used alone."""
        if self._fabric is None and self._program is not None:
            return self._program.devices  # type: ignore[no-any-return]
        return Devices.of(self.fabric)

    @abstractmethod
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
