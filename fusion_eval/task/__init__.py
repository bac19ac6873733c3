"""What to measure: batteries of metrics and predict functions, by domain."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion_eval.task.classification import classification_battery
    from fusion_eval.task.outputs import features_of, logits_of
    from fusion_eval.task.predict import ArgmaxPredict, LabelPredict, Passthrough, SigmoidPredict, TensorPredict
    from fusion_eval.task.registry import get_task, list_tasks, register_task
    from fusion_eval.task.task import Task

_WHERE = {
    "ArgmaxPredict": "predict",
    "LabelPredict": "predict",
    "Passthrough": "predict",
    "SigmoidPredict": "predict",
    "Task": "task",
    "TensorPredict": "predict",
    "classification_battery": "classification",
    "features_of": "outputs",
    "get_task": "registry",
    "list_tasks": "registry",
    "logits_of": "outputs",
    "register_task": "registry",
}

__all__ = [
    "ArgmaxPredict",
    "LabelPredict",
    "Passthrough",
    "SigmoidPredict",
    "Task",
    "TensorPredict",
    "classification_battery",
    "features_of",
    "get_task",
    "list_tasks",
    "logits_of",
    "register_task",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"fusion_eval.task.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'fusion_eval.task' has no attribute '{name}'")
