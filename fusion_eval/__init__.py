"""Merge neural networks and prove that the merge is better."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusion_eval.version import __version__ as __version__

if TYPE_CHECKING:
    from fusion_eval.build import check, instantiate
    from fusion_eval.log import get_rankzero_logger
    from fusion_eval.method.base_method import Method, RuleMethod
    from fusion_eval.mixins import BaseYAMLSerializable, LightningFabricMixin, auto_register_config
    from fusion_eval.modelpool.base_pool import BaseModelPool
    from fusion_eval.program.api import compare, evaluate, merge
    from fusion_eval.program.study import Study
    from fusion_eval.report.report import Report
    from fusion_eval.report.values import ModelResult, TaskResult, Value
    from fusion_eval.task.classification import classification_battery
    from fusion_eval.task.registry import get_task, list_tasks, register_task
    from fusion_eval.task.task import Task
    from fusion_eval.taskpool.base_pool import BaseTaskPool

_HOME = {
    "BaseModelPool": "fusion_eval.modelpool.base_pool",
    "BaseTaskPool": "fusion_eval.taskpool.base_pool",
    "BaseYAMLSerializable": "fusion_eval.mixins",
    "LightningFabricMixin": "fusion_eval.mixins",
    "Method": "fusion_eval.method.base_method",
    "ModelResult": "fusion_eval.report.values",
    "Report": "fusion_eval.report.report",
    "RuleMethod": "fusion_eval.method.base_method",
    "Study": "fusion_eval.program.study",
    "Task": "fusion_eval.task.task",
    "TaskResult": "fusion_eval.report.values",
    "Value": "fusion_eval.report.values",
    "auto_register_config": "fusion_eval.mixins",
    "check": "fusion_eval.build",
    "classification_battery": "fusion_eval.task.classification",
    "compare": "fusion_eval.program.api",
    "evaluate": "fusion_eval.program.api",
    "get_rankzero_logger": "fusion_eval.log",
    "get_task": "fusion_eval.task.registry",
    "instantiate": "fusion_eval.build",
    "list_tasks": "fusion_eval.task.registry",
    "merge": "fusion_eval.program.api",
    "register_task": "fusion_eval.task.registry",
}
"""Where each public name lives; it is imported when it is asked for, so that the package itself loads no torch."""

__all__ = [
    "BaseModelPool",
    "BaseTaskPool",
    "BaseYAMLSerializable",
    "LightningFabricMixin",
    "Method",
    "ModelResult",
    "Report",
    "RuleMethod",
    "Study",
    "Task",
    "TaskResult",
    "Value",
    "auto_register_config",
    "check",
    "classification_battery",
    "compare",
    "evaluate",
    "get_rankzero_logger",
    "get_task",
    "instantiate",
    "list_tasks",
    "merge",
    "register_task",
]


def __getattr__(name: str) -> Any:
    """A public name, imported on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'fusion_eval' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])
