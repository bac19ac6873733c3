"""What to measure: batteries of metrics and predict functions, by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusion_eval.lazy import public_name

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
    return public_name(__name__, _WHERE, name)
