"""Every experiment that the package ships runs, on two items per task."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fusion_eval.config_path import config_dir
from fusion_eval.errors import FusionEvalError
from tests.program.running import run

EXPERIMENTS = {path.stem: path.read_text(encoding="utf-8") for path in (config_dir() / "experiment").glob("*.yaml")}
SCRIPTS = {
    name: found[1] for name, text in EXPERIMENTS.items() if (found := re.search(r"First run: (scripts/\w+)", text))
}
HUB = {name for name in EXPERIMENTS if name.startswith("mergebench")}  # their models and data are on the hub only
MISSING = re.compile("hub|is not installed|confirm_run_unsafe_code")


def ran(name: str, folder: Path) -> None:
    report = run(folder, f"experiment={name}", "limit=2")
    assert report.status == "complete"
    assert report.partial
    assert report.table


def test_there_are_experiments() -> None:
    assert "digits_ties" in EXPERIMENTS


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - set(SCRIPTS) - HUB))
def test_the_experiment_runs(name: str, tmp_path: Path) -> None:
    ran(name, tmp_path)


@pytest.mark.parametrize("name", sorted(HUB))
def test_only_the_hub_is_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(FusionEvalError) as refused:
        ran(name, tmp_path / "out")
    assert refused.value.faults
    assert [str(fault) for fault in refused.value.faults if not MISSING.search(str(fault))] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_the_experiment_runs_after_its_script(
    name: str, tmp_path: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, repo_root / SCRIPTS[name]], check=True, capture_output=True)
    ran(name, tmp_path / "out")
