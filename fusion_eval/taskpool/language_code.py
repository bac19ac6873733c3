"""Execution of what a model writes, for tasks that score by running it: only with consent, only in the sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from fusion_eval.harness.peer_metrics import code_runner

if TYPE_CHECKING:
    from fusion_eval.sandbox import Sandbox


@contextmanager
def code_execution(allowed: bool) -> Iterator[None]:
    """Inside, tasks that call `code_eval` run their programs in the sandbox where `allowed`, else they are refused."""
    with ExitStack() as stack:
        boxes: list[Sandbox] = []

        def run(programs: Sequence[str]) -> list[bool]:
            if not boxes:  # started for the first program, and kept for the rest
                from fusion_eval.sandbox import Sandbox

                boxes.append(stack.enter_context(Sandbox(allow_code_execution=True)))
            return _passed(boxes[0], programs)

        stack.enter_context(code_runner(run if allowed else None))
        yield


def _passed(box: Sandbox, programs: Sequence[str]) -> list[bool]:
    from fusion_eval.sandbox import Program

    verdicts = box.run([Program(code=text, mode="in_process") for text in programs])
    return [verdict.status == "passed" for verdict in verdicts]
