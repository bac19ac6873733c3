"""Evaluate a model on tasks: build, answer, score, aggregate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError
from fusion_eval.harness.build import BuiltTask, RunOptions, build_requests, load_tasks, reset
from fusion_eval.harness.catalog import TaskCatalog
from fusion_eval.harness.context import BuildContext
from fusion_eval.harness.dataset import DataSource, quiet
from fusion_eval.harness.engine.protocol import LanguageModel
from fusion_eval.harness.function import ModuleSpace
from fusion_eval.harness.group import aggregate_group
from fusion_eval.harness.outcome import GroupOutcome, Outcome, TaskOutcome
from fusion_eval.harness.peer_names import peer_names
from fusion_eval.harness.plan import GroupPlan, Selection
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Progress, Ranks, Scheduler
from fusion_eval.harness.score import score_task
from fusion_eval.harness.stderr import PEER_REPLICATES
from fusion_eval.harness.store import AnswerStore
from fusion_eval.harness.task import Task
from fusion_eval.harness.validate import readable_faults
from fusion_eval.harness.yaml_file import YamlFile, parse_file


@dataclass(slots=True)
class Suite:
    """Tasks of a run, built once and evaluated on any number of models.

    Args:
        selection: what to run.
        trusted: folders whose Python may run.
        data: where data sets come from.
        options: of the run.
        reader: reads a task file with its includes, for checks.
    """

    selection: Selection
    trusted: Sequence[Path]
    data: DataSource = field(default_factory=DataSource)
    options: RunOptions = field(default_factory=RunOptions)
    reader: Callable[[Path], YamlFile] = parse_file
    _tasks: dict[str, Task] = field(default_factory=dict)
    _built: dict[Any, dict[str, BuiltTask]] = field(default_factory=dict)

    def load(self) -> dict[str, Task]:
        """Tasks with their data, once.

        Raises:
            FusionEvalError: whatever is wrong with any of them, all at once.
        """
        if not self._tasks:
            context = BuildContext(self.data, self.options.compat, self.options.fewshot_seed)
            with quiet(), peer_names(self.trusted):
                self._tasks = load_tasks(self.selection, ModuleSpace(self.trusted), context, self.options)
        return self._tasks

    def build(self, options: RunOptions | None = None, key: Any = None) -> dict[str, BuiltTask]:
        """Requests of every task; kept for the next model where `key` is equal (it stands for the chat template)."""
        if key not in self._built:
            chosen = options or self.options
            tasks = self.load()
            with quiet(), peer_names(self.trusted):
                self._built[key] = {name: build_requests(name, task, chosen) for name, task in tasks.items()}
        return {name: reset(built) for name, built in self._built[key].items()}

    def names(self) -> AbstractContextManager[None]:
        """The context in which the tasks' Python runs."""
        return peer_names(self.trusted)

    def shares(self, options: RunOptions, key: Any, only: Sequence[str] | None) -> Iterator[dict[str, BuiltTask]]:
        """The tasks in shares that are asked and scored one after the other; here all at once."""
        yield {name: task for name, task in self.build(options, key).items() if only is None or name in only}

    def score(self, task: BuiltTask, options: RunOptions, iterations: int, ranks: Ranks) -> TaskOutcome:
        """The outcome of a task whose requests have their answers."""
        return score_task(task, options, iterations)

    def group(self, plan: GroupPlan, tasks: Mapping[str, TaskOutcome], options: RunOptions) -> GroupOutcome:
        """The values of a group."""
        return aggregate_group(plan, tasks, options.compat)


def make_suite(
    tasks: str | Sequence[Any], *, include_path: Iterable[Path] = (), data: DataSource | None = None,
    options: RunOptions | None = None, metadata: Mapping[str, Any] | None = None, cache: Path | None = None,
) -> Suite:  # fmt: skip
    """The suite of task names, globs, tags, groups, files or folders.

    Raises:
        ConfigError: whatever cannot be found or read, all at once.
    """
    roots = [Path(path) for path in include_path]
    catalog = TaskCatalog(roots, cache, metadata)
    selection, faults = catalog.survey(tasks)
    if faults:
        raise ConfigError(*dict.fromkeys([*faults, *readable_faults(selection, catalog.read)]))
    named = [*roots, *(file.parent for file in catalog.files)]
    return Suite(selection, named, data or DataSource(), options or RunOptions(), catalog.read)


def evaluate(
    suite: Suite, model: LanguageModel, *, chat: bool = False, store: Path | None = None, ranks: Ranks | None = None,
    seed: int = 0, iterations: int = PEER_REPLICATES, progress: Progress | None = None,
    only: Sequence[str] | None = None,
) -> Outcome:  # fmt: skip
    """The scores of a model on a suite; every rank gets the same.

    Args:
        suite: the tasks.
        model: the engine.
        chat: use the model's chat template.
        store: folder for answers, so that a killed run goes on; None to keep none.
        ranks: the processes of the run.
        seed: of sampled text.
        iterations: replicates of the peer's bootstrap, with `compat`.
        progress: told (kind, units done, units in all).
        only: names of the tasks to evaluate; None for all.
    """
    ranks = ranks or Ranks()
    started = time.process_time()
    options = replace(suite.options, chat_template=model.apply_chat_template) if chat else suite.options
    key = model.encoder.key if chat and hasattr(model, "encoder") else model.fingerprint if chat else None
    tasks: dict[str, TaskOutcome] = {}
    spent = dict.fromkeys(("requests", "build_cpu_seconds", "model_cpu_seconds", "score_cpu_seconds"), 0.0)
    with suite.names():
        answers = AnswerStore(store, model.fingerprint, ranks.rank) if store else None
        scheduler = Scheduler(model, answers, ranks, progress)
        for share in suite.shares(options, key, only):
            requests = [request for task in share.values() for request in task.requests]
            prepared = time.process_time()
            asked = _ask(scheduler, share, requests, seed)
            answered = time.process_time()
            tasks.update({name: suite.score(task, options, iterations, ranks) for name, task in share.items()})
            scored = time.process_time()
            for name, value in zip(
                spent, (asked, prepared - started, answered - prepared, scored - answered), strict=True
            ):
                spent[name] += value
            started = scored
    groups = {plan.name: suite.group(plan, tasks, options) for plan in suite.selection.all_groups()}
    return Outcome(tasks, groups, options, {**model.work, **spent})


def _ask(scheduler: Scheduler, share: Mapping[str, BuiltTask], requests: list[Request], seed: int) -> int:
    """Answers requests, and what tasks ask after them, round by round; returns how many were asked."""
    asked = 0
    while requests:
        scheduler.answer(requests, seed)
        asked += len(requests)
        requests = [request for task in share.values() for request in task.task.next_round(task.requests)]
    return asked
