"""`program=my_study`: one cell per job, then the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusion_eval.errors import ConfigError, EvaluationError
from fusion_eval.program.study.merges import HeadPredict, merge_cell, pool_of
from fusion_eval.program.study.program import StudyProgram, cell_name
from tests.program.running import run

HERE = "tests.program.study.test_program"
CALLS: list[str] = []


def train(seed: int, width: int) -> nn.Module:
    CALLS.append(f"{width}/{seed}")
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def load(path: Path) -> nn.Module:
    state = torch.load(path, weights_only=True)
    width = state["0.weight"].shape[0]
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
    model.load_state_dict(state)
    return model


def data() -> list[Any]:
    return [(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)]


def node(folder: Path) -> dict[str, Any]:
    return {
        "_target_": "fusion_eval.program.study.Study",
        "methods": {f"w{w}": {"_target_": f"{HERE}.train", "_partial_": True, "width": w} for w in (2, 8)},
        "load_fn": {"_target_": f"{HERE}.load", "_partial_": True},
        "seeds": [0, 1],
        "data": {"_target_": f"{HERE}.data"},
        "folder": str(folder / "study"),
        "options": {"num_classes": 3, "resamples": 200},
    }


def test_cells_are_jobs_and_the_whole_trains_the_rest(tmp_path: Path) -> None:
    CALLS.clear()
    report = StudyProgram(node(tmp_path), cell="w8/1", output=tmp_path / "job").run()
    assert CALLS == ["8/1"]
    assert report.notes == ("trained w8, seed 1",)
    whole = StudyProgram(node(tmp_path), output=tmp_path / "whole").run()
    assert sorted(CALLS) == ["2/0", "2/1", "8/0", "8/1"]
    assert any(note.startswith("classification: accuracy: ") for note in whole.notes)
    assert (tmp_path / "whole" / "report.json").is_file()


def test_unknown_cells_and_other_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"program.cell: 'w8/7'; expected one of w2/0, w2/1"):
        StudyProgram(node(tmp_path), cell="w8/7").run()
    with pytest.raises(ConfigError, match=r"program\.study: a list"):
        StudyProgram({"_target_": f"{HERE}.data"}).run()


@pytest.mark.parametrize(
    ("cell", "name"),
    [(None, None), ({"method": None, "seed": None}, None), ({"method": "w2", "seed": 1}, "w2/1"), ("w2/1", "w2/1")],
)
def test_cells_have_two_forms(cell: Any, name: str | None) -> None:
    assert cell_name(cell) == name


@pytest.mark.parametrize("cell", [{"method": "w2"}, {"seed": 0}, {"method": "w2", "sead": 0}])
def test_half_a_cell_is_refused(cell: Any) -> None:
    with pytest.raises(ConfigError, match=r"program\.cell.*method and seed, or neither"):
        cell_name(cell)


def test_merges_are_the_shipped_study(tmp_path: Path) -> None:
    small = (
        "program=study",
        f"program.study.folder={tmp_path / 'study'}",
        "program.study.seeds=[0,1,2]",
        "~program.study.tasks.mirror",
        "program.study.options.metrics=[accuracy]",
    )
    first = run(tmp_path / "one", *small, "program.cell.method=dare", "program.cell.seed=1")
    assert first.notes == ("trained dare, seed 1",)
    whole = run(tmp_path / "all", *small)
    assert any(note.startswith("upright: accuracy: average is better than dare") for note in whole.notes)
    records = {path.parent.name: path.stat().st_mtime_ns for path in (tmp_path / "study" / "cells").glob("*/cell.json")}
    again = run(tmp_path / "again", *small)
    assert again.notes == whole.notes
    assert records == {
        path.parent.name: path.stat().st_mtime_ns for path in (tmp_path / "study" / "cells").glob("*/cell.json")
    }


def test_merges_that_cannot_be_made_are_failed_cells(tmp_path: Path) -> None:
    small = ("program=study", f"program.study.folder={tmp_path / 'study'}", "program.study.seeds=[0]")
    with pytest.raises(EvaluationError, match=r"study, dare, seed 0: ConfigError: method.*densty"):
        run(tmp_path / "run", *small, "+program.study.methods.dare.densty=0.5")
    assert (tmp_path / "study" / "cells" / "average__seed0" / "cell.json").is_file()


@pytest.mark.parametrize("given", [3, {"_target_": "builtins.dict"}])
def test_pools_and_methods_are_what_they_say(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a model pool"):
        pool_of(given)
    with pytest.raises(ConfigError, match="a merging method"):
        merge_cell(0, tmp_path, method=given)
    with pytest.raises(ConfigError, match="no head for task 'sideways'"):
        HeadPredict("sideways")
