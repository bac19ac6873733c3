"""The summary of a sweep: every job, failed and unfinished ones too, again and again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.report.__main__ import main
from fusion_eval.report.report import Report
from fusion_eval.report.sweep import summarise
from fusion_eval.report.values import ModelResult, TaskResult, Value


def job(
    folder: Path,
    number: int,
    status: str,
    accuracy: float | None = None,
    partial: bool = False,
    error: str | None = None,
) -> None:
    place = folder / str(number)
    place.mkdir(parents=True)
    overrides = [f"method=m{number}", "taskpool=t"]
    (place / "status.json").write_text(json.dumps({"status": status, "overrides": overrides, "error": error}))
    if accuracy is not None:
        tasks = tuple(
            TaskResult(
                name, {"accuracy": Value(accuracy, 0.01, 50, True, (accuracy - 0.02, accuracy + 0.02))}, 50, partial
            )
            for name in "xy"
        )
        Report("complete", (ModelResult("merged", "merged", tasks, {}),)).write(place)


def test_every_job_has_a_row(tmp_path: Path) -> None:
    job(tmp_path, 0, "completed", 0.5)
    job(tmp_path, 1, "failed", error="method.scaling: <bad> & sad")
    job(tmp_path, 2, "running")
    job(tmp_path, 10, "completed", 0.75, partial=True)
    header, rows = summarise(tmp_path)
    assert header == ["job", "method", "status", "x", "y", "average"]
    assert [row[:3] for row in rows] == [
        ["0", "m0", "ok"],
        ["1", "m1", "FAILED"],
        ["2", "m2", "UNFINISHED"],
        ["10", "m10", "PARTIAL"],
    ]
    assert rows[0][3:5] == ["50.0", "50.0"]
    assert rows[0][5].startswith("50.0 [")
    assert rows[1][3:] == ["-", "-", "-"]
    page = (tmp_path / "sweep.html").read_text()
    assert "&lt;bad&gt; &amp; sad" in page
    assert "<bad>" not in page
    assert "partial results (10) cannot be compared with full ones" in (tmp_path / "sweep.md").read_text()
    stored = json.loads((tmp_path / "sweep.json").read_text())
    assert [entry["status"] for entry in stored["jobs"]] == ["completed", "failed", "running", "completed"]
    assert summarise(tmp_path) == (header, rows)


def test_a_spoilt_job_does_not_take_the_others_along(tmp_path: Path) -> None:
    job(tmp_path, 0, "completed", 0.5)
    job(tmp_path, 1, "completed", 0.6)
    (tmp_path / "1" / "status.json").write_text("{")
    (tmp_path / "0" / "report.json").write_text("{")
    header, rows = summarise(tmp_path)
    assert [row[header.index("status")] for row in rows] == ["NO REPORT", "FAILED"]


def test_a_folder_without_jobs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no jobs of a sweep"):
        summarise(tmp_path)


def test_the_module_shows_runs_and_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path, 0, "completed", 0.5)
    main([str(tmp_path / "0"), str(tmp_path)])
    printed = capsys.readouterr().out
    assert "sweep of 1 jobs" in printed
    assert printed.count("50.0") >= 3
