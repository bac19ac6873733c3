"""What the package's own task pools share: devices, and a report that is made of typed results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fusion_eval.evaluation.devices import Devices
from fusion_eval.log import get_rankzero_logger
from fusion_eval.mixins import LightningFabricMixin
from fusion_eval.report.values import ModelResult
from fusion_eval.taskpool.base_pool import BaseTaskPool

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
