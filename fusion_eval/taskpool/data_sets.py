"""The data sets and heads that pools name: checked, then opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fusion_eval.errors import ConfigError, DataError, Fault, listed
from fusion_eval.taskpool.base_pool import NOT_TASKS

HeadSource = Callable[[str], nn.Module | None]


def name_faults(test_datasets: Mapping[Any, Any]) -> list[Fault]:
    """No tasks at all, and names that reports cannot take."""
    found: list[Fault] = []
    if not test_datasets:
        found.append(Fault("taskpool.test_datasets", "no data sets", "at least one"))
    for name in test_datasets:
        if not isinstance(name, str):
            found.append(Fault("taskpool.test_datasets", f"a task named {name!r}", "a text", f"Quote it: '{name}'."))
        elif name in NOT_TASKS:
            found.append(Fault(f"taskpool.test_datasets.{name}", "a name that reports use", do="Rename the task."))
    return found


def opened(name: str, node: Any) -> Any:
    """The data set that a node describes.

    Raises:
        ConfigError: it cannot be built.
        DataError: it is no data set, or several.
    """
    from fusion_eval.build import build

    where = f"taskpool.test_datasets.{name}"
    dataset = build(node, _key_=where)
    if not (callable(getattr(dataset, "__getitem__", None)) or callable(getattr(dataset, "__iter__", None))):
        raise DataError(Fault(where, f"a {type(dataset).__name__}", "a data set"))
    if isinstance(dataset, Mapping):
        raise DataError(
            Fault(where, f"a dictionary of splits ({listed(list(dataset))})", "one split", "Set its split.")
        )
    return dataset


def as_head_source(heads: Any) -> HeadSource:
    """Heads given as a mapping, an object with `head(task)` or a callable, as a callable."""
    if isinstance(heads, Mapping):
        return lambda task: heads.get(task)
    method = getattr(heads, "head", None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    if callable(heads) and not isinstance(heads, nn.Module):
        return heads  # type: ignore[no-any-return]
    raise ConfigError(
        Fault("taskpool.heads", f"a {type(heads).__name__}", "modules by task name, or an object with head(task)")
    )
