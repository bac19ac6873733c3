"""The arguments of a comparison, checked before the first forward pass: methods, seeds, clusters, devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, EvaluationError, Fault, FusionEvalError, listed
from fusion_eval.evaluation.devices import Devices
from fusion_eval.stats.paired import AUTO, CLUSTERED
from fusion_eval.stats.settings import Settings

Model = nn.Module | Callable[[], nn.Module]
"""A model, or a function that loads one when its turn comes."""


def runs_of(methods: Any, faults: list[Fault]) -> dict[str, list[Model]]:
    """The models of every method, one per seed; what is wrong with them goes into `faults`."""
    if not isinstance(methods, Mapping | nn.ModuleDict):
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
        EvaluationError: the function failed, or the model has no weights.
        ConfigError: the function gave something that is no module.
    """
    module = model if isinstance(model, nn.Module) else _called(model)
    if not isinstance(module, nn.Module):
        raise ConfigError(Fault("the model", f"its function gives a {type(module).__name__}", "a torch module"))
    empty = [name for name, tensor in chain(module.named_parameters(), module.named_buffers()) if tensor.is_meta]
    if empty:
        do = "Load its weights: model.to_empty(device='cpu'), then load_state_dict."
        raise EvaluationError(Fault("the model", f"no data in {listed(empty)} (device 'meta')", "weights", do))
    return module


def _called(load: Callable[[], nn.Module]) -> Any:
    try:
        return load()
    except FusionEvalError:
        raise
    except Exception as error:
        found = f"its function failed with {type(error).__name__}: {' '.join(str(error).split())}"
        raise EvaluationError(Fault("the model", found, "a torch module")) from error


def places_of(device: Any, fabric: Any, faults: list[Fault]) -> tuple[torch.device, ...]:
    """The devices that models run on; none to leave every model where it is."""
    if device is None:
        return ()
    if fabric is not None:
        faults.append(Fault("device", f"{device!r} beside fabric", "one of them", "Fabric says where models run."))
        return ()
    several = list(device) if isinstance(device, list | tuple) else [device]
    if not several:
        faults.append(Fault("device", "no devices", "at least one"))
    return tuple(place for each in several if (place := _device(each, faults)) is not None)


def _device(given: Any, faults: list[Fault]) -> torch.device | None:
    expected = "a device of this machine, such as 'cpu' or 'cuda:0'"
    try:
        device = torch.device(given)
        torch.empty(1, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        faults.append(Fault("device", repr(given), expected, " ".join(str(error).split("\n", 1)[0].split())))
        return None
    if device.type == "meta":
        faults.append(Fault("device", "'meta', which holds no numbers", expected))
        return None
    return device


def ranks_of(fabric: Any, faults: list[Fault]) -> Devices:
    """The processes of a launched Fabric; this one alone without."""
    if fabric is None:
        return Devices()
    try:
        return Devices.of(fabric)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        found = f"a {type(fabric).__name__} ({' '.join(str(error).split())})"
        faults.append(Fault("fabric", found, "a launched lightning.fabric.Fabric", "Call fabric.launch() first."))
        return Devices()


def seed_faults(seeds: Any, count: int) -> list[Fault]:
    """What is wrong with the runs' names."""
    if seeds is None:
        return []
    if isinstance(seeds, str) or not isinstance(seeds, Sequence | range):
        return [Fault("seeds", f"a {type(seeds).__name__}", f"{count} whole numbers, one per run")]
    if not all(isinstance(seed, Integral) for seed in seeds):
        return [Fault("seeds", listed([repr(seed) for seed in seeds]), "whole numbers, one per run")]
    if len(seeds) != count:
        return [Fault("seeds", f"{len(seeds)} names", f"{count}, one per run")]
    if len(set(seeds)) < count:
        return [Fault("seeds", listed([str(seed) for seed in seeds]), "a different one for every run")]
    return []


def cluster_faults(settings: Settings, clusters: Any, items: int | None, extras: Mapping[str, Any]) -> list[Fault]:
    """Labels that cannot fit the items, a test that knows no clusters."""
    faults = []
    if (clusters is not None or "cluster" in extras) and settings.test not in (AUTO, *CLUSTERED):
        faults.append(Fault(f"test='{settings.test}'", "clustered items", f"one of {listed(CLUSTERED)} for clusters"))
    if clusters is not None and items is not None and "mask" not in extras and len(clusters) != items:
        found = f"{len(clusters)} labels for {items} items"
        faults.append(Fault("clusters", found, "one label per item, in the items' order"))
    return faults


def faults_of(check: Callable[[], Any], faults: list[Fault]) -> Any:
    """The result of a check, or None with its faults noted."""
    try:
        return check()
    except FusionEvalError as error:
        faults.extend(error.faults)
        return None
