"""Models per task that were merged and saved before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fusion_eval.errors import Fault
from fusion_eval.merge.per_task import TaskCheckpoints
from fusion_eval.method.base_method import Method, Pool

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class SavedTasks(Method):
    """What `save` wrote of a merge that gives every task a model, over the pool's base. No paper.

    Args:
        path: the folder.
    """

    needs_base: ClassVar[bool] = True
    min_experts: ClassVar[int] = 0

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()

    def apply(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> TaskCheckpoints:
        """The tasks' models, decoded on demand."""
        assert pool.base_name is not None
        return TaskCheckpoints.load(self.path, pool.checkpoint(pool.base_name))

    def faults(self, pool: Pool) -> list[Fault]:
        """No such folder."""
        found = super().faults(pool)
        if not self.path.is_dir():
            found.append(Fault("method.path", f"{self.path} is no folder", "the folder of a merge per task"))
        return found
