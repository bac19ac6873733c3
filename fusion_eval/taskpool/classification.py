"""Classification on several data sets with one backbone: set-up once, the one evaluation loop, typed results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import Dataset

from fusion_eval.errors import ConfigError, DataError, Fault, FusionEvalError, did_you_mean
from fusion_eval.evaluation.batches import EvaluationLoader, keyword_faults
from fusion_eval.report.values import ModelResult, TaskResult
from fusion_eval.task.battery import OfferedBattery
from fusion_eval.task.classification import ArgmaxPredict
from fusion_eval.task.registry import get_task
from fusion_eval.task.task import Task
from fusion_eval.taskpool.classification_step import ClassificationStep, known_label_range
from fusion_eval.taskpool.data_sets import HeadSource, as_head_source, name_faults, opened
from fusion_eval.taskpool.scoring import ITEM_METRICS, averages_over_shared_items, score
from fusion_eval.taskpool.typed_pool import DataSetTaskPool, evaluated

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, slots=True)
class Measures:
    """What is reported per task.

    Args:
        metrics: names of the classification battery, `accuracy` and `loss`; "all"; or metrics by name, as nodes with a
            `_target_` or as objects. By default accuracy and loss.
        task: a registered task's name or a Task, whose battery and predict function replace the built-in ones.
        prob_metrics: metrics that want probabilities; by default the task's.
    """

    metrics: Any = None
    task: str | Task = "classification"
    prob_metrics: Sequence[str] | None = None

    def names(self) -> list[str]:
        """The metrics' names in the order of the report."""
        if self.metrics is None:
            return list(ITEM_METRICS)
        if self.metrics == "all":
            return list(dict.fromkeys([*ITEM_METRICS, *get_task(self.task).battery(2)]))
        return [self.metrics] if isinstance(self.metrics, str) else list(self.metrics)

    def probabilities(self) -> frozenset[str]:
        """The metrics that want probabilities."""
        return get_task(self.task).prob_metrics if self.prob_metrics is None else frozenset(self.prob_metrics)

    def battery(self, num_classes: int) -> dict[str, Metric]:
        """Fresh metrics for every name that is not a mean over items.

        Raises:
            ConfigError: a name that neither the battery nor the rows have.
        """
        from fusion_eval.build import build

        if isinstance(self.metrics, Mapping):
            return {name: build(node) for name, node in self.metrics.items()}
        wanted = [name for name in self.names() if name not in ITEM_METRICS]
        if not wanted:
            return {}
        battery = get_task(self.task).battery
        if isinstance(battery, OfferedBattery):
            offered, known = {}, {*ITEM_METRICS, *battery.names}
        else:
            offered = battery(num_classes)
            known = {*ITEM_METRICS, *offered}
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise ConfigError(
                *(
                    Fault(
                        "taskpool.metrics",
                        f"no metric '{name}'",
                        f"some of {', '.join(sorted(known))}",
                        did_you_mean(name, known),
                    )
                    for name in unknown
                )
            )
        if isinstance(battery, OfferedBattery):
            return battery.pick(wanted, num_classes)
        return {name: offered[name] for name in wanted}


class ClassificationTaskPool(DataSetTaskPool):
    """Data sets with class labels; subclasses say how an item becomes a model's input.

    Args:
        test_datasets: data sets by task name, as nodes with a `_target_` or as objects.
        dataloader_kwargs: keywords of `torch.utils.data.DataLoader` (batch_size, num_workers, collate_fn, ...).
        heads: maps a task's name to the module from features to logits: a mapping, a callable, or a node that builds
            one; None where the model itself gives logits, or where the model pool has heads.
        measures: what is reported, see `Measures`.
        limit: evaluate only the first items of each data set; marks the report as partial.
        fast_dev_run: evaluate one batch of each data set; marks the report as partial.
        shared_items: item i of every data set is the same thing, such as one picture seen in several ways; errors of
            averages over tasks then count items, not answers.
        progress: show progress bars on rank zero.
    """

    def __init__(
        self,
        test_datasets: Mapping[str, Any],
        *,
        dataloader_kwargs: Mapping[str, Any] | None = None,
        heads: Any = None,
        metrics: Any = None,
        task: str | Task = "classification",
        prob_metrics: Sequence[str] | None = None,
        limit: int | None = None,
        fast_dev_run: bool = False,
        shared_items: bool = False,
        progress: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._test_datasets = test_datasets
        self._dataloader_kwargs = dict(dataloader_kwargs or {"batch_size": 32})
        self._heads = heads
        self._measures = Measures(metrics, task, prob_metrics)
        self.limit, self.fast_dev_run, self.progress = limit, fast_dev_run, progress
        self.shared_items = shared_items
        self._loaders: dict[str, EvaluationLoader] | None = None
        self._head_of: HeadSource | None = None

    @abstractmethod
    def prepare(self, name: str, dataset: Dataset[Any], options: dict[str, Any]) -> Dataset[Any]:
        """The data set whose items a model can take; may add DataLoader keywords to `options`."""

    @property
    def test_dataloaders(self) -> dict[str, EvaluationLoader]:
        """This rank's batches with item ids, by task."""
        self.setup()
        assert self._loaders is not None
        return self._loaders

    def use_heads(self, source: HeadSource) -> None:
        """Take heads from there for the tasks that have none of their own."""
        if self._heads is None:
            self._head_of = source

    def faults(self) -> list[Fault]:
        """Misspelt metrics, loader keywords that cannot be used, names that are none, and no tasks at all."""
        found = name_faults(self._test_datasets)
        found.extend(keyword_faults(self._dataloader_kwargs, "taskpool.dataloader_kwargs"))
        try:
            self._measures.battery(2)
        except FusionEvalError as error:
            found.extend(error.faults)
        return found

    def setup(self) -> None:
        """Open every data set and build its loader, once.

        Raises:
            DataError: with one fault per data set that cannot be opened, is empty or has labels outside its head.
        """
        if self._loaders is not None:
            return
        self._loaders = self._open_all(self._open)

    def _open(self, name: str, node: Any) -> EvaluationLoader:
        from fusion_eval.build import build

        dataset = opened(name, node)
        options = build(self._dataloader_kwargs, _key_="taskpool.dataloader_kwargs")
        limit = self.limit if not self.fast_dev_run else int(options.get("batch_size") or 1)
        self._check_labels(name, dataset)
        prepared = self.prepare(name, dataset, options)
        devices = self.devices
        return EvaluationLoader(name, prepared, options, limit=limit, rank=devices.rank, world=devices.world)

    def _check_labels(self, name: str, dataset: Any) -> None:
        span, head = known_label_range(dataset), self.head(name)
        classes = getattr(head, "num_classes", None)
        if span is not None and classes is not None and not (span[0] >= 0 and span[1] < classes):
            raise DataError(
                Fault(
                    f"taskpool.test_datasets.{name}",
                    f"labels from {span[0]} to {span[1]}",
                    f"labels from 0 to {classes - 1}, the head's {classes} classes",
                    "Use the head and the label mapping of this task.",
                )
            )

    def head(self, task: str) -> nn.Module | None:
        """The module from features to logits, or None where the model gives logits."""
        if self._head_of is None and self._heads is not None:
            from fusion_eval.build import build

            self._head_of = as_head_source(build(self._heads, _key_="taskpool.heads"))
        return None if self._head_of is None else self._head_of(task)

    def _whole(self, result: ModelResult) -> ModelResult:
        if not self.shared_items:
            return result
        averages = {**result.average(), **averages_over_shared_items(result.tasks)}
        return replace(result, shared_items=True, averages=averages)

    def _evaluated(self, model: nn.Module, task: str, who: str) -> TaskResult:
        return self._evaluate(model, self.test_dataloaders[task], who)

    def _evaluate(self, model: nn.Module, loader: EvaluationLoader, model_name: str) -> TaskResult:
        head = self.head(loader.name)
        probabilities = self._measures.probabilities()
        task = get_task(self._measures.task)
        step = ClassificationStep(
            loader.name,
            None if head is None else self.devices.place(head).eval(),
            None if isinstance(task.predict_fn, ArgmaxPredict) else task.predict_fn,
            keep_probs=any(metric in probabilities for metric in self._measures.names()),
            keep_loss="loss" in self._measures.names(),
            fields=task.fields,
        )
        return evaluated(self, model, loader, step, lambda rows: self._scored(loader, rows), who=model_name)

    def _scored(self, loader: EvaluationLoader, rows: Any) -> TaskResult:
        probs = rows.columns.get("probs")
        labels = rows.columns["target"]
        classes = probs.shape[1] if probs is not None else int(max(labels.max(), rows.columns["pred"].max())) + 1
        battery = self._measures.battery(self._classes(loader.name) or classes)
        return score(loader.name, rows, self._measures.names(), battery, self._measures.probabilities(), loader.partial)

    def _classes(self, task: str) -> int | None:
        return getattr(self.head(task), "num_classes", None)
