"""Multimodal tasks of a run: each is read, asked and scored on its own, with fresh modules for every model."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusion_eval.errors import DataError, Fault, FusionEvalError
from fusion_eval.harness.build import BuiltTask, RunOptions, build_requests, line_of
from fusion_eval.harness.catalog import TaskCatalog
from fusion_eval.harness.context import BuildContext, building
from fusion_eval.harness.dataset import DataSource, quiet
from fusion_eval.harness.function import ModuleSpace
from fusion_eval.harness.judge.base import Judge
from fusion_eval.harness.multimodal.aggregate import arguments
from fusion_eval.harness.multimodal.dialect import EXTRA_KEYS, ModelNames, Style, names_of, style_of
from fusion_eval.harness.multimodal.group import aggregate_same_metrics
from fusion_eval.harness.multimodal.peer import multimodal_names
from fusion_eval.harness.multimodal.redirect import local_hub
from fusion_eval.harness.multimodal.sample import described
from fusion_eval.harness.multimodal.setting import Setting
from fusion_eval.harness.multimodal.task import MultimodalTask
from fusion_eval.harness.outcome import GroupOutcome, SampleRow, TaskOutcome
from fusion_eval.harness.plan import GroupPlan, TaskPlan
from fusion_eval.harness.scheduler import Ranks
from fusion_eval.harness.score import OnRow, score_task
from fusion_eval.harness.spec import TaskSpec
from fusion_eval.harness.suite import Suite
from fusion_eval.harness.task import Task


@dataclass(slots=True)
class MultimodalSuite(Suite):
    """Multimodal tasks.

    Args:
        setting: what the run gives to every task.
        on_row: told (task, row) as soon as a document is scored, on rank zero.
        judge: what tasks ask about answers; None for the one that the environment names.
        checked: whether every task was opened once.
    """

    setting: Setting = field(default_factory=Setting)
    on_row: Any = None
    judge: Judge | None = None
    checked: bool = False
    _styles: dict[Path, set[Style]] = field(default_factory=dict)

    def names(self) -> AbstractContextManager[None]:
        """The context in which `import lmms_eval...` works, and hub names are looked for in `data_root`."""
        return _contexts(multimodal_names(self.trusted, self.judge), local_hub(self.data))

    def load(self) -> dict[str, Task]:
        """Every task with its data, and the first question of each.

        Raises:
            FusionEvalError: whatever is wrong with any of them, all at once.
        """
        loaded: dict[str, Task] = {}
        faults: list[Fault] = []
        with self.names():
            for name, plan in self.selection.tasks.items():
                try:
                    task = self._task(plan)
                    if not self.checked:
                        probe = replace(self.options, limit=1, samples={})
                        build_requests(name, task, probe)
                    loaded[name] = task
                except FusionEvalError as error:
                    faults += [_named(fault, name) for fault in error.faults]
        if faults:
            raise DataError(*faults)
        self.checked = True
        return loaded

    def task(self, name: str) -> MultimodalTask:
        """One task with its data and modules of its own; call it inside `names()`."""
        return self._task(self.selection.tasks[name])

    def _task(self, plan: TaskPlan) -> MultimodalTask:
        context = BuildContext(self.data, self.options.compat, self.options.fewshot_seed)
        with quiet(), building(context):
            spec = ModuleSpace(self.trusted).resolve(plan.spec).with_shots(self.options.num_fewshot)
            setting = replace(self.setting, style=self.setting.style or self._style(spec))
            try:
                return MultimodalTask(spec, setting)
            except FusionEvalError:
                raise
            except Exception as error:
                where = f"task '{plan.name}' (process_docs)" if spec.process_docs else f"task '{plan.name}'"
                raise DataError(Fault(where, f"{type(error).__name__}: {error}{line_of(error)}")) from error

    def _style(self, spec: TaskSpec) -> Style:
        source = spec.source.resolve() if spec.source else None
        around = [root for root in self.trusted if source and source.is_relative_to(root.resolve())]
        return style_of(spec, [*([source.parent] if source else []), *around], self._styles)

    def shares(self, options: RunOptions, key: Any, only: Sequence[str] | None) -> Iterator[dict[str, BuiltTask]]:
        """The tasks one by one, each made anew: nothing that a task's Python keeps reaches another model."""
        for name, plan in self.selection.tasks.items():
            if only is None or name in only:
                with self.names():
                    yield {name: self._built_task(name, plan, options)}

    def _built_task(self, name: str, plan: TaskPlan, options: RunOptions) -> BuiltTask:
        try:
            with quiet():
                return build_requests(name, self._task(plan), options)
        except FusionEvalError as error:
            raise type(error)(*(_named(fault, name) for fault in error.faults)) from error

    def score(self, task: BuiltTask, options: RunOptions, iterations: int, ranks: Ranks) -> TaskOutcome:
        """The outcome of a task, computed on rank zero, where its files are written; others get the numbers."""
        outcome: TaskOutcome | None = None
        sent: Any = None
        if ranks.rank == 0:
            try:
                outcome = score_task(task, options, iterations, self._row_listener(task.name))
                outcome.rows = [replace(row, arguments=described(row.arguments)) for row in outcome.rows]
                _mark_absent(outcome, task.task, options)
                sent = _portable(outcome) if ranks.world_size > 1 else None
            except FusionEvalError as error:
                sent = error
        agreed = ranks.gather(sent)[0] if ranks.world_size > 1 else sent
        if isinstance(agreed, FusionEvalError):
            raise agreed
        return outcome or replace(agreed, spec=task.spec)

    def _row_listener(self, task: str) -> OnRow | None:
        if self.on_row is None:
            return None

        def listen(row: SampleRow) -> None:
            self.on_row(task, replace(row, arguments=described(row.arguments)))

        return listen

    def group(self, plan: GroupPlan, tasks: Mapping[str, TaskOutcome], options: RunOptions) -> GroupOutcome:
        """The values of a group: those it lists, else every metric that all its tasks have."""
        return aggregate_same_metrics(plan, tasks, options.compat)


@contextmanager
def _contexts(*contexts: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _mark_absent(outcome: TaskOutcome, task: Task, options: RunOptions) -> None:
    """Say which metrics of the file no document has a value for."""
    if outcome.rows and not options.predict_only:
        given = {name for row in outcome.rows for name in row.metrics}
        absent = [metric for metric in task.aggregation() if metric not in given]
        outcome.failed.update({f"{metric},none": "no document gave a value" for metric in absent})


def _named(fault: Fault, name: str) -> Fault:
    return fault if name in fault.where else replace(fault, where=f"{name}: {fault.where}")


def _portable(outcome: TaskOutcome) -> TaskOutcome:
    """The outcome as other ranks get it: without documents, the values as text where they cannot be sent."""
    rows = [
        replace(row, doc=None, target=None, arguments=[], resps=[], filtered=[], metrics=_sendable(row.metrics))
        for row in outcome.rows
    ]
    values = {key: replace(value, value=_sendable({"": value.value})[""]) for key, value in outcome.values.items()}
    return replace(outcome, spec=TaskSpec(), rows=rows, values=values)


def _sendable(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        try:
            pickle.dumps(value)
            found[name] = value
        except (pickle.PicklingError, TypeError, AttributeError):
            found[name] = repr(value)
    return found


def make_multimodal_suite(
    tasks: str | Sequence[Any], *, include_path: Iterable[Path] = (), data: DataSource | None = None,
    options: RunOptions | None = None, model_names: str | Sequence[str] | ModelNames | None = None,
    metadata: Mapping[str, Any] | None = None, output: Path | str | None = None, setting: Setting | None = None,
    judge: Judge | None = None, cache: Path | None = None,
) -> MultimodalSuite:  # fmt: skip
    """The suite of task names, globs, tags, groups, files or folders.

    Args:
        tasks: what to run.
        include_path: folders with task files, later ones override earlier ones; only these may run Python.
        data: where data sets come from.
        options: of the run.
        model_names: the model's name, then its aliases, for settings that only some models get.
        metadata: merged into every task's metadata.
        output: folder for submission files.
        setting: what the run gives to every task.
        judge: what tasks ask about answers.
        cache: folder of the index cache.

    Raises:
        ConfigError: whatever cannot be found or read, all at once.
    """
    roots = [Path(path) for path in include_path]
    catalog = TaskCatalog(roots, cache, metadata, EXTRA_KEYS, "lmms_eval")
    selection = catalog.select(tasks)
    named = [*roots, *(file.parent for file in catalog.files)]
    chosen = setting or Setting()
    if model_names is not None:
        chosen = replace(chosen, names=names_of(model_names))
    if output is not None:
        chosen = replace(chosen, args=arguments(output))
    return MultimodalSuite(
        selection, named, data or DataSource(), options or RunOptions(), catalog.read, setting=chosen, judge=judge
    )
