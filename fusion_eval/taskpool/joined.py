"""Several task pools as one: language, multimodal and other tasks in one run and one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from fusion_eval.build import build
from fusion_eval.errors import ConfigError, Fault
from fusion_eval.report.values import TaskResult
from fusion_eval.taskpool.base_pool import BaseTaskPool
from fusion_eval.taskpool.typed_pool import Measurements, TypedTaskPool


class JoinedTaskPool(TypedTaskPool):
    """Task pools one after the other.

    Args:
        pools: pools by name, as nodes with a `_target_` or as objects; null leaves one out.
        prefix: put the pool's name before its tasks' ("language/arc_easy"); needed where names are the same.
        progress: show progress on rank zero.
    """

    def __init__(self, pools: Mapping[str, Any], *, prefix: bool = False, progress: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        chosen = {str(name): node for name, node in pools.items() if node is not None}
        if not chosen:
            raise ConfigError(Fault("taskpool.pools", "empty", "at least one task pool"))
        self.pools: dict[str, BaseTaskPool] = {
            name: build(node, _key_=f"taskpool.pools.{name}") for name, node in chosen.items()
        }
        self._prefix = prefix
        self.progress = progress

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks of all pools, in order."""
        return tuple(self._full(name, task) for name, pool in self.pools.items() for task in _tasks(pool))

    def _full(self, pool: str, task: str) -> str:
        return f"{pool}/{task}" if self._prefix else task

    def restrict(self, limit: int | None, fast_dev_run: bool) -> None:
        """Evaluate only the first items of every pool's tasks."""
        for pool in self.pools.values():
            pool.restrict(limit, fast_dev_run)

    def use_heads(self, source: Any) -> None:
        """Take heads from there, in pools that need some."""
        for pool in self.pools.values():
            pool.use_heads(source)

    def faults(self) -> list[Fault]:
        """What is wrong with any pool, and names that two of them have."""
        found = [fault for pool in self.pools.values() for fault in pool.faults()]
        if found:
            return found
        names = list(self.task_names)
        twice = sorted({name for name in names if names.count(name) > 1})
        return [Fault("taskpool.pools", f"two pools have a task '{name}'", do="Set prefix=true.") for name in twice]

    def setup(self) -> None:
        """Open the data of all pools."""
        for pool in self.pools.values():
            self._place(pool)
            pool.setup()

    def _place(self, pool: BaseTaskPool) -> None:
        pool._program = self._program
        pool.progress = pool.progress and self.progress
        if isinstance(pool, TypedTaskPool) and self._fabric is not None:
            pool._fabric = self._fabric

    def _measured(
        self, model: nn.Module | Mapping[str, nn.Module], name: str, role: str, tasks: Sequence[str] | None
    ) -> Measurements:
        found: list[TaskResult] = []
        info: Mapping[str, float] = {}
        for key, pool in self.pools.items():
            own = None if tasks is None else [t for t in _tasks(pool) if self._full(key, t) in tasks]
            if own == []:
                continue
            self._place(pool)
            part = pool.results(self._share(model, key, pool), name, role, own)
            info = info or part.model_info
            found += [_renamed(task, self._full(key, task.name)) for task in part.tasks]
        return dict(info), found

    def _share(self, model: Any, key: str, pool: BaseTaskPool) -> Any:
        """The model, or of models per task those of one pool."""
        if not isinstance(model, Mapping) or not self._prefix:
            return model
        return {task: model[self._full(key, task)] for task in _tasks(pool) if self._full(key, task) in model}


def _tasks(pool: BaseTaskPool) -> tuple[str, ...]:
    return tuple(getattr(pool, "task_names", ()))


def _renamed(task: TaskResult, name: str) -> TaskResult:
    return task if task.name == name else replace(task, name=name)
