"""What a comparison will do, checked before the first forward pass: methods, task, metrics, data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.evaluation.loop import Batches
from fusion_eval.taskpool.measurement import Measurement

Model = nn.Module | Callable[[], nn.Module]
"""A model, or a function that loads one when its turn comes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked comparison: models per method, batches, what is measured, where, and the runs' names."""

    runs: Mapping[str, Sequence[Model]]
    loader: Batches
    measurement: Measurement
    device: torch.device | None
    seeds: tuple[int, ...]


def runs_of(methods: Any, faults: list[Fault]) -> dict[str, list[Model]]:
    """The models of every method, one per seed; what is wrong with them goes into `faults`."""
    if not isinstance(methods, Mapping):
        faults.append(Fault("methods", f"a {type(methods).__name__}", "models by method name"))
        return {}
    if not methods:
        faults.append(Fault("methods", "no methods", "at least one"))
    runs = {}
    for name, given in methods.items():
        if not isinstance(name, str) or not name.strip():
            faults.append(Fault("methods", f"the name {name!r}", "non-empty text", "Use str(name)."))
        runs[str(name)] = _models(str(name), given, faults)
    counts = {name: len(models) for name, models in runs.items() if models}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"'{name}' has {count}" for name, count in counts.items())
        faults.append(Fault("methods", f"unequal numbers of seeds: {found}", "as many for every method"))
    return runs


def _models(name: str, given: Any, faults: list[Fault]) -> list[Model]:
    """A bare module is one run; a ModuleList, like any sequence, is one run per entry."""
    where = f"methods, '{name}'"
    if isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList):
        return [given]
    if not isinstance(given, nn.ModuleList) and (callable(given) or isinstance(given, str | bytes | Tensor)):
        if callable(given):
            return [given]
        faults.append(Fault(where, f"a {type(given).__name__}", "a module, or a list of modules, one per seed"))
        return []
    if not isinstance(given, Sequence | nn.ModuleList):
        faults.append(Fault(where, f"a {type(given).__name__}", "a module, or a list of modules, one per seed"))
        return []
    models = given if isinstance(given, Sequence) and not isinstance(given, list | tuple) else list(given)
    if not len(models):
        faults.append(Fault(where, "an empty list", "at least one model"))
    if isinstance(models, list):
        for i, model in enumerate(models):
            if not callable(model):
                faults.append(Fault(f"{where}, run {i}", f"a {type(model).__name__}", "a torch module"))
    return models  # type: ignore[return-value]


def loaded(model: Model) -> nn.Module:
    """The model, loaded where it is a function that loads one.

    Raises:
        ConfigError: the function gave something that is no module.
    """
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ConfigError(Fault("the model", f"its function gives a {type(module).__name__}", "a torch module"))
    return module


def device_of(given: Any, faults: list[Fault]) -> torch.device | None:
    """The device, or None to leave every model where it is."""
    if given is None or isinstance(given, torch.device):
        return given
    try:
        return torch.device(given)
    except (RuntimeError, TypeError) as error:
        faults.append(Fault("device", repr(given), "a device such as 'cpu' or 'cuda:0'", " ".join(str(error).split())))
        return None


def faults_of(check: Callable[[], Any], faults: list[Fault]) -> Any:
    """The result of a check, or None with its faults noted."""
    try:
        return check()
    except FusionEvalError as error:
        faults.extend(error.faults)
        return None
