"""Any task of `list_tasks`, or of the user's, on any data sets: segmentation, detection, regression, text and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError, did_you_mean, listed
from fusion_eval.evaluation.batches import EvaluationLoader, keyword_faults
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.mixins import auto_register_config
from fusion_eval.report.values import TaskResult
from fusion_eval.task.inputs import split_batch
from fusion_eval.taskpool.data_sets import as_head_source, name_faults, opened
from fusion_eval.taskpool.measured_task import measured_task
from fusion_eval.taskpool.measurement import Measurement, MetricArguments, check_targets, measurement
from fusion_eval.taskpool.typed_pool import DataSetTaskPool, evaluated

_OF_A_TASK = (
    "task",
    "num_classes",
    "ignore_index",
    "metrics",
    "predict_fn",
    "prob_metrics",
    "fields",
    "dataloader_kwargs",
)
_IN_WORKERS = ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "worker_init_fn")


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task whose data are open: what is measured, and this rank's batches."""

    chosen: Measurement
    loader: EvaluationLoader


@auto_register_config
class TaskPool(DataSetTaskPool):
    """One or several tasks, each measured on a data set as `compare` measures it.

    Args:
        test_datasets: data sets by task name, as nodes with a `_target_` or as objects.
        task: what is measured: a name of `list_tasks`, the dotted name of a Task, a node that builds one, or a Task.
        num_classes: the number of classes, labels or outputs; by default that of the head, or of the targets.
        ignore_index: targets with this value do not count.
        metrics: names that the task offers, or metrics by name as nodes or objects; by default the task's battery.
        predict_fn: (model, x) -> (predictions, probabilities), as a node or a dotted name; by default the task's.
        prob_metrics: metrics that are fed probabilities; by default the task's, and those that need them.
        fields: what the parts of a batch are, where it is neither a pair nor a dictionary with a usual label name.
        dataloader_kwargs: keywords of `torch.utils.data.DataLoader`.
        per_task: any of the above from `task` on that differ for one data set, by its name.
        heads: maps a task's name to the module from features to logits; by default those of the model pool, if any.
        limit: evaluate only the first items of each data set; marks the report as partial.
        fast_dev_run: evaluate one batch of each data set; marks the report as partial.
        progress: show progress bars on rank zero.
    """

    def __init__(
        self,
        test_datasets: Mapping[str, Any],
        *,
        task: Any = "classification",
        num_classes: int | None = None,
        ignore_index: int | None = None,
        metrics: Any = None,
        predict_fn: Any = None,
        prob_metrics: Sequence[str] | None = None,
        fields: Any = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
        per_task: Mapping[str, Mapping[str, Any]] | None = None,
        heads: Any = None,
        limit: int | None = None,
        fast_dev_run: bool = False,
        progress: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.limit, self.fast_dev_run, self.progress = limit, fast_dev_run, progress
        given = (task, num_classes, ignore_index, metrics, predict_fn, prob_metrics, fields, dataloader_kwargs)
        self._shared = dict(zip(_OF_A_TASK, given, strict=True))
        self._own = {str(name): dict(changes) for name, changes in (per_task or {}).items()}
        self._test_datasets = test_datasets
        self._given_heads, self._head_of = heads, None if heads is None else as_head_source(heads)
        self._open: dict[str, OpenTask] | None = None

    def use_heads(self, source: Any) -> None:
        """Take heads from there, unless the pool has its own."""
        if self._given_heads is None:
            self._head_of = source

    def faults(self) -> list[Fault]:
        """Names, keywords, tasks and metrics that cannot be had, without opening a data set."""
        found = name_faults(self._test_datasets)
        for name, changes in self._own.items():
            if name not in self._test_datasets:
                hint = did_you_mean(name, self.task_names)
                found.append(Fault(f"taskpool.per_task.{name}", "no such data set", listed(self.task_names), hint))
            found += [
                Fault(f"taskpool.per_task.{name}.{key}", "no key", listed(_OF_A_TASK, 9), did_you_mean(key, _OF_A_TASK))
                for key in changes
                if key not in _OF_A_TASK
            ]
        if found:
            return found
        for name in self.task_names:
            where = f"taskpool.per_task.{name}" if name in self._own else "taskpool"
            found += keyword_faults(self._option(name, "dataloader_kwargs") or {}, f"{where}.dataloader_kwargs")
            try:
                self._measurement(name, 2, None)
            except FusionEvalError as error:
                found += error.faults
        return list(dict.fromkeys(found))

    def setup(self) -> None:
        """Open every data set, build its loader and look at its first batch, once.

        Raises:
            DataError: with one fault per data set that cannot be opened, is empty or does not fit its task.
        """
        if self._open is not None:
            return
        self._open = self._open_all(self._opened)

    def _evaluated(self, model: nn.Module, task: str, who: str) -> TaskResult:
        assert self._open is not None
        chosen, loader = self._open[task].chosen, self._open[task].loader
        head = self._head(task)
        step = TaskStep(task, chosen.task, chosen.make(), None if head is None else self.devices.place(head).eval())
        return evaluated(self, model, loader, step, lambda rows: measured_task(chosen, rows, loader.partial), who=who)

    def _head(self, task: str) -> nn.Module | None:
        return None if self._head_of is None else self._head_of(task)

    def _option(self, name: str, key: str) -> Any:
        return self._own.get(name, {}).get(key, self._shared[key])

    def _measurement(self, name: str, classes: int | None, target: Any) -> Measurement:
        """What is measured; `classes` stands in where the configuration names no number of classes."""
        keys = [key for key in _OF_A_TASK if key != "dataloader_kwargs"]
        given = MetricArguments(**{key: self._option(name, key) for key in keys})
        if given.num_classes is None and classes is not None:
            given = MetricArguments(**{**{key: self._option(name, key) for key in keys}, "num_classes": classes})
        try:
            chosen = measurement(given, target)
        except ConfigError as error:
            raise ConfigError(
                *(Fault(f"taskpool, task '{name}', {f.where}", f.found, f.expected, f.do) for f in error.faults)
            ) from error
        return Measurement(name, chosen.task, chosen.make)

    def _opened(self, name: str, node: Any) -> OpenTask:
        from fusion_eval.build import build
        from fusion_eval.taskpool.measurement import task_of

        dataset = opened(name, node)
        options = dict(build(self._option(name, "dataloader_kwargs") or {"batch_size": 32}) or {})
        task = task_of(self._option(name, "task"))
        if task.collate is not None:
            options.setdefault("collate_fn", task.collate)
        first = next(iter(self._loader(name, dataset, {k: v for k, v in options.items() if k not in _IN_WORKERS}, 1)))[
            1
        ]
        fields = self._option(name, "fields") or task.fields
        target = split_batch(first, fields, f"task '{name}', first batch").target
        chosen = self._measurement(name, getattr(self._head(name), "num_classes", None), target)
        check_targets(chosen, target)
        return OpenTask(chosen, self._loader(name, dataset, options, None))

    def _loader(self, name: str, dataset: Any, options: dict[str, Any], batches: int | None) -> EvaluationLoader:
        """This rank's batches; of the first batch only, alone, where its number is given."""
        size = int(options.get("batch_size") or 1)
        limit = size if self.fast_dev_run or batches else self.limit
        if batches:
            return EvaluationLoader(name, dataset, options, limit=limit)
        rank, world = self.devices.rank, self.devices.world
        return EvaluationLoader(name, dataset, options, limit=limit, rank=rank, world=world)
