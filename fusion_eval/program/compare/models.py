"""Models compared on one task: evaluated once each, tested on their items and seeds, with a verdict per pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from fusion_eval.errors import ConfigError, DataError, Fault
from fusion_eval.evaluation.columns import length_of
from fusion_eval.evaluation.given import as_loader
from fusion_eval.evaluation.loop import Batches
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.log import get_rankzero_logger
from fusion_eval.program.compare.plan import (
    Model,
    Plan,
    device_of,
    faults_of,
    runs_of,
)
from fusion_eval.program.compare.result import compared
from fusion_eval.program.compare.row_cache import RowCache, data_key, task_key
from fusion_eval.program.compare.runs import RowSource, evaluated
from fusion_eval.stats.result import ComparisonResult
from fusion_eval.stats.settings import SettingsArguments, settings_of
from fusion_eval.task.inputs import split_batch
from fusion_eval.task.task import BatchFields, Task
from fusion_eval.taskpool.measurement import (
    MetricArguments,
    MetricChoice,
    check_targets,
    measurement,
    task_of,
)

log = get_rankzero_logger(__name__)


def compare(
    methods: Mapping[str, Model | Sequence[Model]],
    data: Any,
    task: str | Task = "classification",
    *,
    num_classes: int | None = None,
    predict_fn: Any = None,
    metrics: MetricChoice = None,
    prob_metrics: Any = None,
    ignore_index: int | None = None,
    device: Any = None,
    clusters: Sequence[Any] | None = None,
    fields: BatchFields | None = None,
    seeds: Sequence[int] | None = None,
    progress: bool = False,
    cache: str | Path | None = None,
    on_error: str = "raise",
    receipt: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingsArguments],
) -> ComparisonResult:
    """Methods compared on a task: each model is evaluated once, every metric is computed once from its items.

    One model per method is compared by items ("these checkpoints"); several, one per seed, by seeds and items ("the
    recipe"). Models are left as and where they were.

    Args:
        methods: per method a model, or one per seed; a function without arguments loads its model when its turn comes.
        data: a DataLoader, a data set, or a list of batches; batches are pairs, dictionaries, or tuples with `fields`.
        task: a Task, a name among `list_tasks()`, the dotted name of a Task, or a node that builds one.
        num_classes: the number of classes, labels or outputs, for tasks that need it.
        predict_fn: (model, x) -> (predictions, probabilities), a node with a `_target_`, or a dotted name.
        metrics: metrics by name (objects, or nodes with a `_target_`), or names that the task offers.
        prob_metrics: metrics that are fed probabilities; by default the task's, and those that need them.
        ignore_index: targets with this value do not count.
        device: where models run; by default where they are.
        clusters: a label per item, where items depend on each other; batches may hold them instead (`fields`).
        fields: what the parts of a batch are, see `task.inputs`.
        seeds: the runs' names, by default 0, 1, ...
        progress: show progress bars.
        cache: a folder of rows of earlier evaluations, by weights, data and task; what is there is not evaluated again.
        on_error: "raise", or "drop" a method whose model cannot be evaluated, with a warning.
        receipt: what to keep with the result besides versions, data, models and metrics.
        **settings: test, unit, alpha, correction, family, reference, rope and the rest of `stats.Settings`.

    Raises:
        ConfigError: everything that is wrong with the arguments, before the first forward pass.
        DataError, EvaluationError: items, targets or outputs that cannot be evaluated.
        StatisticsError: scores that cannot be compared.
    """
    given = MetricArguments(task, num_classes, predict_fn, metrics, prob_metrics, ignore_index, fields)
    plan = _plan(methods, data, given, device, seeds, settings)
    runs, dropped = evaluated(_source(plan, progress, cache), drops(on_error))
    found = compared(runs, plan.measurement, clusters, _receipt(plan, receipt), settings, plan.seeds)
    return replace(found, warnings=(*dropped, *found.warnings))


def drops(on_error: str) -> bool:
    """Whether methods that cannot be evaluated are dropped.

    Raises:
        ConfigError: neither "raise" nor "drop".
    """
    if on_error not in ("raise", "drop"):
        raise ConfigError(Fault("on_error", repr(on_error), "'raise' or 'drop'"))
    return on_error == "drop"


def _plan(
    methods: Any, data: Any, given: MetricArguments, device: Any, seeds: Any, settings: SettingsArguments
) -> Plan:
    faults: list[Fault] = []
    runs = runs_of(methods, faults)
    faults_of(lambda: settings_of(settings), faults)
    place = device_of(device, faults)
    task = faults_of(lambda: task_of(given.task), faults)
    fields = given.fields if given.fields is not None or task is None else task.fields
    collate = None if task is None else task.collate
    loader = faults_of(lambda: as_loader(given.name, data, fields, collate=collate), faults)
    count = max((len(models) for models in runs.values()), default=0)
    if seeds is not None and len(seeds) != count:
        faults.append(Fault("seeds", f"{len(seeds)} names", f"{count}, one per run"))
    parts = None if loader is None else faults_of(lambda: _first_parts(loader, fields), faults)
    chosen = None
    if task is not None:
        target = None if parts is None else parts.target
        chosen = faults_of(lambda: measurement(given, target), faults)
    if chosen is not None and parts is not None:
        faults_of(lambda: check_targets(chosen, parts.target), faults)
    if faults or loader is None or chosen is None:
        raise ConfigError(*faults)
    return Plan(runs, loader, chosen, place, tuple(seeds) if seeds is not None else tuple(range(count)))


def _first_parts(loader: Batches, fields: BatchFields | None) -> Any:
    first = next(iter(loader), None)
    if first is None:
        raise DataError(Fault("data", "no batches", "at least one", "Check the data set's path and split."))
    parts = split_batch(first[1], fields, "data, first batch")
    if length_of(parts.inputs) == 0:
        raise DataError(Fault("data, first batch", "no items", "at least one"))
    return parts


def _source(plan: Plan, progress: bool, cache: str | Path | None) -> RowSource:
    chosen = plan.measurement
    if cache is None:
        return RowSource(plan, progress, None)
    task = task_key(TaskStep(chosen.name, chosen.task, chosen.make()))
    return RowSource(plan, progress, RowCache(Path(cache), data_key(plan.loader), task))


def _receipt(plan: Plan, more: Mapping[str, Any] | None) -> dict[str, Any]:
    from fusion_eval.program.compare.receipt import circumstances

    return {**circumstances(plan.runs, plan.loader, plan.measurement, plan.device), **dict(more or {})}
