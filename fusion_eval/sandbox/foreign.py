"""Programs in other languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fusion_eval.sandbox.program import Program
from fusion_eval.sandbox.worker import Setup


def run_all(programs: dict[str, Program], setup: Setup, workers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Outcomes."""
    raise NotImplementedError
