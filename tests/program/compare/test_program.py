"""`program=compare`: base, experts and merges, or finished runs, task by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusion_eval.errors import ConfigError, DataError
from fusion_eval.program.compare.finished import read_runs
from fusion_eval.program.compare.items import scores_of
from fusion_eval.report.values import TaskResult, Value
from fusion_eval.stats.result import ComparisonResult
from tests.program.running import run

SMALL = ("limit=60", "fabric=cpu", "modelpool.tasks=[upright,edges]")
TASKS = {"upright", "edges"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("compared")
    methods = "program.methods=[simple_average,ties]"
    return folder, run(folder, "program=compare", methods, *SMALL)


def test_every_model_is_evaluated_on_every_task(compared: Any) -> None:
    _, report = compared
    assert [model.name for model in report.models] == ["base", "upright", "edges", "simple_average", "ties"]
    assert len({len(model.tasks) for model in report.models}) == 1
    assert [model.role for model in report.models][-2:] == ["merged", "merged"]


def test_comparisons_are_written_in_every_form(compared: Any) -> None:
    folder, _ = compared
    found = ComparisonResult.load(folder / "comparison" / "upright.json")
    assert found.settings.reference == "base"
    assert {c.method_a for c in found.comparisons} == {"upright", "edges", "simple_average", "ties"}
    assert found.comparison("accuracy", "upright", "base").verdict == "better"
    assert found.comparison("accuracy", "upright", "base").n_items == 60
    assert {"accuracy", "loss"} == set(found.metrics)
    suffixes = {path.suffix for path in (folder / "comparison").glob("upright.*")}
    assert suffixes == {".json", ".npz", ".md", ".tex", ".html", ".csv"}


def test_the_report_says_what_was_found(compared: Any) -> None:
    _, report = compared
    assert any(note.startswith("accuracy: upright against base:") for note in report.notes)
    assert any("mean ranks over" in note for note in report.notes)
    assert report.seconds["compare"] > 0


def test_finished_runs_are_compared_without_evaluating(tmp_path: Path) -> None:
    kept = ("program.experts=none", "program.base=true")
    for method in ("simple_average", "ties"):
        run(tmp_path / method, f"method={method}", *kept, *SMALL)
    folders = f"program.runs=[{tmp_path / 'simple_average'},{tmp_path / 'ties'}]"
    report = run(tmp_path / "compared", "program=compare", folders, *SMALL)
    assert [model.name for model in report.models] == ["base", "simple_average/merged", "ties/merged"]
    assert "evaluate" not in report.seconds
    found = ComparisonResult.load(tmp_path / "compared" / "comparison" / "upright.json")
    assert found.comparison("accuracy", "ties/merged", "base") is not None


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_runs([tmp_path / "nowhere"])
    run(tmp_path / "bare", "program.keep_items=false", "program.experts=none", *SMALL)
    with pytest.raises(ConfigError, match=r"no per-item file.*keep_items=true"):
        read_runs([tmp_path / "bare"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("program.models=[bse]", "no model 'bse'"),
        ("program.reference=nobody", "program.reference: 'nobody'"),
        ("program.methods=[tiess]", "tiess"),
        ("program.statistics.test=anova", "anova"),
        ("+program.statistics.tset=welch", "tset"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_work(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, "program=compare", override, *SMALL)


def result(scores: list[float], target: list[int] | None = None, **more: Any) -> TaskResult:
    items = {"id": np.arange(len(scores)), "target": np.array(target or [0] * len(scores)), "correct": np.array(scores)}
    value = Value(float(np.mean(scores)), n=len(scores))
    return TaskResult("t", {"accuracy": value, **more}, len(scores), items=items)


def test_scores_come_from_columns_that_give_the_reported_value() -> None:
    scores, notes = scores_of({"a": result([1, 0, 1, 1]), "b": result([0, 0, 1, 1], f1=Value(0.9))})
    assert [s.metric for s in scores] == ["accuracy"]
    assert scores[0].items is not None
    wrong = TaskResult("t", {"accuracy": Value(0.1)}, 4, items=result([1, 0, 1, 1]).items)
    scores, notes = scores_of({"a": wrong, "b": result([0, 0, 1, 1])})
    assert scores == []
    assert notes == ["accuracy: not compared, since its values have no form by items"]


def test_models_on_different_items_are_refused() -> None:
    with pytest.raises(DataError, match=r"'b' was evaluated on other items than 'a'"):
        scores_of({"a": result([1, 0]), "b": result([1, 0, 1])})
    with pytest.raises(DataError, match="other items"):
        scores_of({"a": result([1, 0], [0, 1]), "b": result([1, 0], [1, 1])})
