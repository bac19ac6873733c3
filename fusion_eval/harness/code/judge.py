"""Who runs the programs of the task being scored: one sandbox, and a record of every verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from fusion_eval.errors import Fault, SandboxError
from fusion_eval.sandbox import Program, Sandbox, Verdict

_CURRENT: ContextVar[Judge | None] = ContextVar("judge", default=None)


@dataclass(slots=True)
class Judge:
    """A sandbox, and the verdicts it has given on candidates.

    Args:
        sandbox: an open sandbox.
        verdicts: one list for each problem of the last scoring.
    """

    sandbox: Sandbox
    verdicts: list[list[Verdict]] = field(default_factory=list)

    def run(self, programs: Sequence[Program]) -> list[Verdict]:
        """Verdicts that are not recorded, such as those on reference solutions."""
        return self.sandbox.run(programs)

    def score(self, programs: Sequence[Sequence[Program]]) -> list[list[Verdict]]:
        """Verdicts on every problem's candidates, all run in one batch and recorded."""
        flat = iter(self.sandbox.run([program for row in programs for program in row]))
        self.verdicts = [[next(flat) for _ in row] for row in programs]
        return self.verdicts


def current_judge() -> Judge:
    """The judge of the scoring that is going on; raises SandboxError where generated code may not run."""
    judge = _CURRENT.get()
    if judge is None:
        raise SandboxError(
            Fault("process_results", "this task runs generated code, and no sandbox is open", "a sandbox",
                  "Set allow_code_execution=true, or call it inside `with judging(Sandbox(...))`.")
        )  # fmt: skip
    return judge


@contextmanager
def judging(sandbox: Sandbox) -> Iterator[Judge]:
    """Makes an open sandbox the one that tasks score with."""
    judge = Judge(sandbox)
    token = _CURRENT.set(judge)
    try:
        yield judge
    finally:
        _CURRENT.reset(token)
