"""Models compared on one task: evaluated once each, tested on their items and seeds, with a verdict per pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.log import get_rankzero_logger
from fusion_eval.program.compare.arguments import Model
from fusion_eval.program.compare.plan import Asked, Plan, planned
from fusion_eval.program.compare.result import compared
from fusion_eval.program.compare.row_cache import RowCache, data_key, task_key
from fusion_eval.program.compare.runs import RowSource, evaluated
from fusion_eval.stats.result import ComparisonResult
from fusion_eval.stats.settings import SettingsArguments
from fusion_eval.task.task import BatchFields, Task
from fusion_eval.taskpool.measurement import MetricArguments, MetricChoice

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
    fabric: Any = None,
    clusters: Sequence[Any] | None = None,
    fields: BatchFields | None = None,
    seeds: Sequence[int] | None = None,
    progress: bool = False,
    cache: str | Path | None = None,
    on_error: str = "raise",
    receipt: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingsArguments],
) -> ComparisonResult:
    """Methods compared on a task: one model each by items ("these checkpoints"), several, one per seed, as recipes.

    Every model is evaluated once, and left as and where it was.

    Args:
        methods: per method a model, or one per seed; a function without arguments loads its model when its turn comes.
        data: a DataLoader, a data set, or a list of batches; batches are pairs, dictionaries, or tuples with `fields`.
        task: a Task, a name among `list_tasks()`, the dotted name of a Task, or a node that builds one.
        num_classes: the number of classes, labels or outputs, for tasks that need it.
        predict_fn: (model, x) -> (predictions, probabilities), a node with a `_target_`, or a dotted name.
        metrics: metrics by name (objects, or nodes), or names that the task offers.
        prob_metrics: metrics that are fed probabilities; by default the task's, and those that need them.
        ignore_index: targets with this value do not count.
        device: where models run; by default where they are. Several (["cuda:0", "cuda:1"]) share the batches.
        fabric: a launched Fabric whose processes all call `compare`, share the batches and get the same result.
        clusters: a label per item, where items depend on each other; batches may hold them instead (`fields`).
        fields: what the parts of a batch are, see `task.inputs`.
        seeds: the runs' names, by default 0, 1, ...; `progress`: show bars.
        cache: a folder of earlier evaluations' rows, by weights, data and task, which are not made again.
        on_error: "raise", or "drop" a method whose model cannot be evaluated, with a warning.
        receipt: what to keep with the result.
        **settings: test, unit, alpha, correction, family, reference, rope and the rest of `stats.Settings`.

    Raises:
        FusionEvalError: all faults of the arguments, before the first forward pass; else what cannot be compared.
    """
    given = MetricArguments(task, num_classes, predict_fn, metrics, prob_metrics, ignore_index, fields)
    plan = planned(Asked(methods, data, given, seeds, clusters, device, fabric), settings)
    runs, dropped = evaluated(_source(plan, progress, cache), drops(on_error))

    found = plan.ranks.on_all(
        lambda: _sent(plan, compared(runs, plan.measurement, clusters, _receipt(plan, receipt), settings, plan.seeds))
    )
    return replace(found, warnings=(*dropped, *found.warnings))


def drops(on_error: str) -> bool:
    """Whether methods that cannot be evaluated are dropped.

    Raises:
        ConfigError: neither "raise" nor "drop".
    """
    if on_error not in ("raise", "drop"):
        raise ConfigError(Fault("on_error", repr(on_error), "'raise' or 'drop'"))
    return on_error == "drop"


def _source(plan: Plan, progress: bool, cache: str | Path | None) -> RowSource:
    chosen = plan.measurement
    if cache is None:
        return RowSource(plan, progress, None)
    task = task_key(TaskStep(chosen.name, chosen.task, chosen.make()))
    return RowSource(plan, progress, None if task is None else RowCache(Path(cache), data_key(plan.loader), task))


def _sent(plan: Plan, found: ComparisonResult) -> ComparisonResult:
    """The result as other processes can be sent it, without functions."""
    scores = tuple(each.without_functions() for each in found.scores)
    return found if plan.ranks.world == 1 else replace(found, scores=scores)


def _receipt(plan: Plan, more: Mapping[str, Any] | None) -> dict[str, Any]:
    from fusion_eval.program.compare.receipt import circumstances

    return {**circumstances(plan), **dict(more or {})}
