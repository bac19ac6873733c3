"""What is measured on a model: a task with its predict function, and a way to build its metrics anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusion_eval.build import build
from fusion_eval.errors import ConfigError, DataError, Fault, did_you_mean, listed
from fusion_eval.evaluation.feeding import needs_probabilities
from fusion_eval.task.battery import Metrics, OfferedBattery
from fusion_eval.task.registry import get_task
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

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
class MetricArguments:
    """The arguments of `compare` that choose what is measured."""

    task: Any = "classification"
    num_classes: int | None = None
    predict_fn: Any = None
    metrics: MetricChoice = None
    prob_metrics: Any = None
    ignore_index: int | None = None
    fields: Any = None

    @property
    def name(self) -> str:
        """The task's name, for errors."""
        return self.task.rpartition(".")[2] if isinstance(self.task, str) else "task"


def task_of(given: Any) -> Task:
    """A Task, the one of a registered name, of the dotted name of an object, or the one that a node builds.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(given, str) and "." in given:
        given = build({"_target_": "hydra.utils.get_object", "path": given}, _key_="task")
    elif isinstance(given, Mapping):
        given = build(given, _key_="task")
    if not isinstance(given, str | Task):
        do = "A node that builds one: {_target_: my_tasks.make}, or its dotted name: my_tasks.TASK."
        raise ConfigError(Fault("task", f"a {type(given).__name__}", "a task's name, or a fusion_eval.Task", do))
    return get_task(given)


def measurement(given: MetricArguments, first_target: Any) -> Measurement:
    """The measurement that the arguments ask for.

    Args:
        given: the arguments.
        first_target: the first batch's targets, which may tell the number of outputs.

    Raises:
        ConfigError: an unknown task or metric, no number of classes, prob_metrics that name no metric.
    """
    task = task_of(given.task)
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
    return Measurement(given.name, replace(task, prob_metrics=_prob_metrics(given, task, battery)), make)


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
        raise ConfigError(Fault("num_classes", "not given", f"the number of classes of task '{given.name}'", do))
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


def check_targets(chosen: Measurement, target: Any) -> None:
    """The first batch's labels against the number of classes that the metrics were made for."""
    counts = {getattr(metric, "num_classes", None) for metric in chosen.make().values()} - {None}
    if not isinstance(target, Tensor) or target.is_floating_point() or len(counts) != 1:
        return
    classes = int(counts.pop() or 0)
    ignored = {getattr(metric, "ignore_index", None) for metric in chosen.make().values()} - {None}
    outside = (target < 0) | (target >= classes)
    for value in ignored:
        outside &= target != value
    if bool(outside.any()):
        values = sorted(set(target[outside].tolist()))[:5]
        do = "Set num_classes, or ignore_index for void entries."
        raise DataError(
            Fault("data, first batch", f"labels {values} for {classes} classes", f"labels from 0 to {classes - 1}", do)
        )
