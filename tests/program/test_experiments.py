"""Every experiment that the package ships runs, on two items per task."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.config_path import config_dir
from tests.program.running import run

EXPERIMENTS = sorted(path.stem for path in (config_dir() / "experiment").glob("*.yaml"))


def test_there_are_experiments() -> None:
    assert "digits_ties" in EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiment_runs(name: str, tmp_path: Path) -> None:
    report = run(tmp_path, f"experiment={name}", "limit=2")
    assert report.status == "complete"
    assert report.partial
    assert report.table
