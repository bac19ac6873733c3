"""Execution of what a model writes, for tasks that score by running it: only with consent, only in the sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fusion_eval.harness.peer_metrics import code_runner


@contextmanager
def code_execution(allowed: bool) -> Iterator[None]:
    """Inside, tasks that call `code_eval` run their programs in the sandbox where `allowed`, else they are refused."""
    if not allowed:
        with code_runner(None):
            yield
        return
    with code_runner(_run):
        yield


def _run(programs: Sequence[str]) -> list[bool]:
    from fusion_eval.sandbox import Program, Sandbox

    with Sandbox(allow_code_execution=True) as box:
        verdicts = box.run([Program(code=text, mode="in_process") for text in programs])
    return [verdict.status == "passed" for verdict in verdicts]
