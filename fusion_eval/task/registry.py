"""Tasks by name."""

from __future__ import annotations

import importlib

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.task.task import Task

_BUILT_IN = {
    "audio": "audio:AUDIO",
    "binary": "binary:BINARY",
    "classification": "classification:CLASSIFICATION",
    "clustering": "clustering:CLUSTERING",
    "detection": "detection:DETECTION",
    "image_quality": "image_quality:IMAGE_QUALITY",
    "language_modeling": "text:LANGUAGE_MODELING",
    "multilabel": "binary:MULTILABEL",
    "nominal": "clustering:NOMINAL",
    "regression": "regression:REGRESSION",
    "retrieval": "retrieval:RETRIEVAL",
    "segmentation": "segmentation:SEGMENTATION",
    "text": "text:TEXT",
}
_REGISTERED: dict[str, Task] = {}


def register_task(name: str, task: Task, *, overwrite: bool = False) -> None:
    """Give a task a name.

    Raises:
        ConfigError: the name is empty, not a string, or taken and `overwrite` is false.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(Fault("register_task", f"the name {name!r}", "a non-empty string"))
    if not isinstance(task, Task):
        raise ConfigError(Fault(f"register_task('{name}')", f"a {type(task).__name__}", "a fusion_eval.Task"))
    if not overwrite and (name in _REGISTERED or name in _BUILT_IN):
        raise ConfigError(
            Fault("register_task", f"'{name}' is registered already", do="Pass overwrite=True to replace it.")
        )
    _REGISTERED[name] = task


def get_task(task: str | Task) -> Task:
    """The task of that name; a Task is returned as it is.

    Raises:
        ConfigError: no task has that name.
    """
    if isinstance(task, Task):
        return task
    if task in _REGISTERED:
        return _REGISTERED[task]
    if task in _BUILT_IN:
        module, _, attribute = _BUILT_IN[task].partition(":")
        found: Task = getattr(importlib.import_module(f"fusion_eval.task.{module}"), attribute)
        return found
    names = sorted({*_REGISTERED, *_BUILT_IN})
    raise ConfigError(Fault("task", f"no task '{task}'", f"one of {', '.join(names)}", did_you_mean(str(task), names)))


def list_tasks() -> dict[str, str]:
    """Descriptions by name, sorted."""
    return {name: get_task(name).description for name in sorted({*_REGISTERED, *_BUILT_IN})}
