"""What a comparison will do, checked before the first forward pass: methods, task, metrics, data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusion_eval.build import build
from fusion_eval.errors import ConfigError, Fault, FusionEvalError, did_you_mean, listed
from fusion_eval.evaluation.feeding import needs_probabilities
from fusion_eval.evaluation.loop import Batches
from fusion_eval.task.battery import Metrics, OfferedBattery
from fusion_eval.task.registry import get_task
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

Model = nn.Module | Callable[[], nn.Module]
"""A model, or a function that loads one when its turn comes."""

MetricChoice = Mapping[str, Any] | Sequence[str] | str | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured on every model.

    Args:
        name: the task's name.
        task: the task, with its predict function and prob_metrics.
        make: builds the battery anew.
    """

    name: str
    task: Task
    make: Callable[[], Mapping[str, Metric]]

    @property
    def where(self) -> str:
        """The task, for errors."""
        return f"task '{self.name}'"


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


@dataclass(frozen=True, slots=True)
class MetricArguments:
    """The arguments of `compare` that choose what is measured."""

    task: str | Task = "classification"
    num_classes: int | None = None
    predict_fn: Any = None
    metrics: MetricChoice = None
    prob_metrics: Any = None
    ignore_index: int | None = None
    fields: Any = None


def measurement(given: MetricArguments, first_target: Any) -> Measurement:
    """The measurement that the arguments ask for.

    Args:
        given: the arguments.
        first_target: the first batch's targets, which may tell the number of outputs.

    Raises:
        ConfigError: an unknown task or metric, no number of classes, prob_metrics that name no metric.
    """
    task = get_task(given.task)
    name = given.task if isinstance(given.task, str) else "task"
    if given.predict_fn is not None:
        task = replace(task, predict_fn=_predict_fn(given.predict_fn))
    if given.fields is not None:
        task = replace(task, fields=given.fields)
    classes = given.num_classes
    if classes is None and task.count_classes is not None:
        classes = task.count_classes(first_target)
    make = _maker(given, task, classes)
    battery = make()
    if not battery:
        raise ConfigError(Fault("metrics", "none", "at least one metric"))
    return Measurement(name, replace(task, prob_metrics=_prob_metrics(given, task, battery)), make)


def _predict_fn(given: Any) -> Any:
    """A function, a node with a `_target_`, or the dotted name of a function."""
    if isinstance(given, str):
        given = {"_target_": "hydra.utils.get_method", "path": given}
    function = build(given, _key_="predict_fn")
    if not callable(function):
        raise ConfigError(Fault("predict_fn", f"a {type(function).__name__}", "a function of (model, x)"))
    return function


def _maker(given: MetricArguments, task: Task, classes: int | None) -> Callable[[], Mapping[str, Metric]]:
    chosen = [given.metrics] if isinstance(given.metrics, str) else given.metrics
    if isinstance(chosen, Mapping):
        templates = _built(chosen)
        return lambda: {name: metric.clone() for name, metric in templates.items()}
    if task.requires_num_classes and classes is None:
        do = "It is not needed when metrics is a dictionary of metrics."
        raise ConfigError(Fault("num_classes", "not given", f"the number of classes of task '{given.task}'", do))
    if chosen is None:
        return lambda: task.battery(classes, given.ignore_index)
    names = list(chosen)
    if isinstance(task.battery, OfferedBattery):
        offered = task.battery
        return lambda: offered.pick(names, classes, given.ignore_index)
    return lambda: _picked(task, names, classes, given.ignore_index)


def _picked(task: Task, names: list[str], classes: int | None, ignore_index: int | None) -> Mapping[str, Metric]:
    built = task.battery(classes, ignore_index)
    unknown = [name for name in names if name not in built]
    if unknown:
        known = list(built)
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(Fault("metrics", f"no metric {listed(unknown)}", f"some of {', '.join(known)}", hint))
    return Metrics({name: built[name] for name in names})


def _built(chosen: Mapping[str, Any]) -> dict[str, Metric]:
    from torchmetrics import Metric

    metrics, faults = {}, []
    for name, node in chosen.items():
        metric = build(node, _key_=f"metrics.{name}")
        if isinstance(metric, Metric):
            metrics[str(name)] = metric
        else:
            faults.append(Fault(f"metrics.{name}", f"a {type(metric).__name__}", "a torchmetrics.Metric"))
    if faults:
        raise ConfigError(*faults)
    return metrics


def _prob_metrics(given: MetricArguments, task: Task, battery: Mapping[str, Metric]) -> frozenset[str]:
    if given.prob_metrics is None:
        wanting = {name for name, metric in battery.items() if needs_probabilities(metric)}
        return frozenset(wanting | (task.prob_metrics & set(battery)))
    named = [given.prob_metrics] if isinstance(given.prob_metrics, str) else list(given.prob_metrics)
    unknown = [name for name in named if name not in battery]
    if unknown:
        raise ConfigError(
            Fault(
                "prob_metrics", f"no metric {listed(unknown)}", f"some of {', '.join(battery)}", "Name them as metrics."
            )
        )
    return frozenset(named)


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
