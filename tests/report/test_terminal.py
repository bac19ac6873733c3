"""What a run prints at its end."""

from __future__ import annotations

import io

from rich.console import Console

from fusion_eval.report.report import Report
from fusion_eval.report.terminal import show
from fusion_eval.report.values import ModelResult, TaskResult, Value


def printed(*notes: str) -> str:
    task = TaskResult("t", {"acc": Value(0.5, None, 4, True)}, 4, False, notes)
    out = io.StringIO()
    report = Report("complete", (ModelResult("base", "base", (task,), {}, 1.0),))
    show(report, console=Console(file=out, soft_wrap=True))
    return out.getvalue()


def test_what_is_noteworthy_about_a_task_is_told_once() -> None:
    assert "note:" not in printed()
    assert "note: base, t: 1 of 4 documents have no score\n" in printed("1 of 4 documents have no score")
    assert "note: base, t: first (2 more on single tasks in report.md)\n" in printed("first", "second", "third")
