"""No test asserts a duration: machines differ, and have other work (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CLOCKS = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
}
FILES = sorted(file for file in HERE.rglob("test_*.py") if "assets" not in file.relative_to(HERE).parts)


def asserted_clocks(text: str) -> list[int]:
    """The lines of assertions that read a clock."""
    return [
        statement.lineno
        for statement in ast.walk(ast.parse(text))
        if isinstance(statement, ast.Assert)
        and any(isinstance(node, ast.Attribute) and node.attr in CLOCKS for node in ast.walk(statement))
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(HERE).as_posix())
def test_no_assertion_reads_a_clock(file: Path) -> None:
    assert asserted_clocks(file.read_text(encoding="utf-8")) == []


def test_such_an_assertion_is_found() -> None:
    assert asserted_clocks("import time\nassert time.monotonic() - start < 5\n") == [2]
