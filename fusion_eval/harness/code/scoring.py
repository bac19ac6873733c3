"""Scores generations: windows of problems, what cannot be judged here, metrics with intervals, every verdict kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.code.compatibility import stand_ins
from fusion_eval.harness.code.execution import ExecutionTask, require_pairs
from fusion_eval.harness.code.judge import judging
from fusion_eval.harness.code.passing import count, interval, tally, values_at
from fusion_eval.harness.code.source import window
from fusion_eval.harness.code.task import Task
from fusion_eval.sandbox import Sandbox, Verdict
from fusion_eval.sandbox.languages import missing_tools
from fusion_eval.stats import Interval


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What came of one task.

    Args:
        metrics: as the task reports them; empty for a task that was skipped.
        intervals: of each pass@k, over problems.
        problems: names of the problems that were scored, in order.
        values: pass@1 of each of them, for paired comparison.
        verdicts: one list for each problem.
        skipped: problem, or the task itself, -> why it could not be judged here.
        statuses: how many samples ended in each way.
        integrity: how many verdicts are of each kind ("split", "in_process", "output").
        sandbox_level: the layers of protection.
    """

    metrics: dict[str, Any]
    intervals: dict[str, Interval] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    verdicts: tuple[tuple[Verdict, ...], ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    integrity: dict[str, int] = field(default_factory=dict)
    sandbox_level: str = ""

    @property
    def unscored(self) -> int:
        """Samples that say nothing about the program, which is a mark on every number above."""
        return sum(not verdict.scored for row in self.verdicts for verdict in row)


def evaluate(
    task: Task,
    generations: Sequence[Sequence[str]],
    sandbox: Sandbox | None = None,
    limit: int | None = None,
    start: int = 0,
) -> CodeResult:
    """The result of candidates for the problems from `start` on.

    Args:
        task: the task.
        generations: candidates of each problem of the window, already postprocessed.
        sandbox: an open sandbox, for tasks that run programs.
        limit: how many problems.
        start: the first of them.

    Raises:
        DataError: generations that do not fit the problems.
        SandboxError: a task that runs programs, and no sandbox.
    """
    docs = window(task.get_dataset(), limit, start)
    require_pairs(generations, docs)
    reason = unavailable(task)
    if reason:
        return CodeResult({}, skipped={type(task).__name__: reason})
    skipped = {name: why for name, why in map(_obstacle(task, start), range(len(docs)), docs) if why}
    names = [_name(task, doc, start + i) for i, doc in enumerate(docs)]
    kept = [i for i, name in enumerate(names) if name not in skipped]
    if not kept:
        return CodeResult({}, skipped=skipped)
    rows = [list(generations[i]) for i in kept]
    references = [task.get_reference(docs[i]) for i in kept]
    if sandbox is None:
        with stand_ins():
            return CodeResult(dict(task.process_results(rows, references)), problems=tuple(names[i] for i in kept))
    with judging(sandbox) as judge, stand_ins():
        metrics = dict(task.process_results(rows, references))
    return _result(metrics, judge.verdicts, [names[i] for i in kept], skipped, sandbox.level)


def _obstacle(task: Task, start: int) -> Any:
    def ask(index: int, doc: Any) -> tuple[str, str]:
        why = task.obstacle(doc) if isinstance(task, ExecutionTask) else ""
        return _name(task, doc, start + index), why

    return ask


def _name(task: Task, doc: Any, index: int) -> str:
    return task.identity(doc, index) if isinstance(task, ExecutionTask) else str(index)


def unavailable(task: Task) -> str:
    """Why a task cannot be run on this machine at all: a toolchain that is missing; empty when it can."""
    if not task.requires_execution:
        return ""
    language = getattr(getattr(task, "rules", None), "language", getattr(task, "language", "python"))
    missing = missing_tools(language) if isinstance(language, str) else ()
    return f"no {' and no '.join(missing)} on this machine" if missing else ""


def _result(
    metrics: dict[str, Any], verdicts: list[list[Verdict]], names: list[str], skipped: dict[str, str], level: str
) -> CodeResult:
    counts = [count(row) for row in verdicts]
    whole = len(counts) == len(names)
    ks = [int(name[5:]) for name in metrics if name.startswith("pass@") and name[5:].isdigit()] if whole else []
    integrity: dict[str, int] = {}
    for verdict in (verdict for row in verdicts for verdict in row):
        integrity[verdict.integrity] = integrity.get(verdict.integrity, 0) + 1
    return CodeResult(
        metrics=metrics,
        intervals={f"pass@{k}": interval(counts, k) for k in ks},
        problems=tuple(names),
        values=tuple(values_at(1, counts)) if ks else (),
        verdicts=tuple(tuple(row) for row in verdicts),
        skipped=skipped,
        statuses=tally(verdicts),
        integrity=integrity,
        sandbox_level=level,
    )


@dataclass(frozen=True, slots=True)
class References:
    """How a task's own solutions fare.

    Args:
        result: as of any candidates.
        failures: problem -> what happened.
        cpu: problem -> seconds of CPU time, from which budgets can be set.
    """

    result: CodeResult
    failures: dict[str, str]
    cpu: dict[str, float]


def check_references(task: ExecutionTask, sandbox: Sandbox, limit: int | None = None, start: int = 0) -> References:
    """Runs a task's own solutions; every problem whose reference fails its own tests is named."""
    docs = window(task.get_dataset(), limit, start)
    result = evaluate(task, [[task.solution(doc)] for doc in docs], sandbox, limit, start)
    pairs = list(zip(result.problems, result.verdicts, strict=False))
    failures = {name: f"{row[0].status}: {row[0].detail}" for name, row in pairs if not all(v.passed for v in row)}
    return References(result, failures, {name: sum(v.cpu for v in row) for name, row in pairs})


def require_references(task: ExecutionTask, sandbox: Sandbox, limit: int | None = None, start: int = 0) -> References:
    """`check_references`, refusing a task with failing references before anything is scored; raises DataError."""
    found = check_references(task, sandbox, limit, start)
    if found.failures:
        faults = [Fault(f"reference of {name}", why, "a solution that passes") for name, why in found.failures.items()]
        raise DataError(*faults[:20], *([] if len(faults) <= 20 else [f"and {len(faults) - 20} more"]))
    return found
