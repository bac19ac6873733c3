"""Studies: cells trained once, failures kept apart, evaluations made once."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, EvaluationError, OutputError
from fusion_eval.program.compare.row_cache import RowCache, model_key
from fusion_eval.program.study.cells import Cell, read_record
from fusion_eval.program.study.study import Study, StudyResult
from fusion_eval.report.files import held
from fusion_eval.stats.result import ComparisonResult
from tests.task.tables import Table, loader, noise

TARGET = torch.arange(60) % 3
DATA = loader(TARGET, 16)
OPTIONS: dict[str, Any] = {"num_classes": 3, "resamples": 200, "metrics": ["accuracy", "f1"]}
CALLS: list[str] = []


def train(seed: int, folder: Path, signal: float = 1.0) -> Path:
    """Weights that depend on the seed."""
    CALLS.append(f"train {signal} {seed}")
    path = folder / "weights.pt"
    torch.save(nn.functional.one_hot(TARGET, 3) * signal + noise(seed, (60, 3)), path)
    return path


def fails_on_two(seed: int, folder: Path) -> Path:
    if seed == 2:
        raise ValueError("the learning rate was too high")
    return train(seed, folder)


class Counting(Table):
    def forward(self, ids: Tensor) -> Tensor:
        CALLS.append("forward")
        return super().forward(ids)


def load(path: Path) -> nn.Module:
    CALLS.append("load")
    return Counting(torch.load(path, weights_only=True))


METHODS = {"good": functools.partial(train, signal=1.0), "weak": functools.partial(train, signal=0.2)}


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def study(folder: Path, **changes: Any) -> Study:
    usual = {"methods": METHODS, "load_fn": load, "seeds": [1, 2, 3], "data": DATA, "options": OPTIONS}
    return Study(**{**usual, "folder": folder, **changes})


def test_a_study_trains_evaluates_and_compares(tmp_path: Path) -> None:
    found = study(tmp_path).run().result
    assert found.data["accuracy"].sizes == {"method": 2, "seed": 3}
    assert found.data["seed"].values.tolist() == [1, 2, 3]
    assert found.comparison("accuracy", "good", "weak").claim == "the recipe"
    assert ComparisonResult.load(tmp_path / "comparison" / "classification.json").to_csv() == found.to_csv()
    record = read_record(tmp_path / "cells" / "good__seed1")
    assert record is not None
    assert record.status == "completed"
    assert record.checkpoint == "weights.pt"
    assert found.receipt["checkpoints"]["good, seed 1"] == record.checkpoint_hash
    assert record.receipt is not None
    assert "torch" in record.receipt["versions"]


def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    first = study(tmp_path).run().result
    assert sum(call.startswith("train") for call in CALLS) == 6
    CALLS.clear()
    again = study(tmp_path, options={**OPTIONS, "test": "ttest_rel", "metrics": ["accuracy"]}).run().result
    assert CALLS == []
    assert again.data["accuracy"].equals(first.data["accuracy"])


def test_only_what_changed_is_done_again(tmp_path: Path) -> None:
    study(tmp_path).run()
    CALLS.clear()
    methods = {"good": METHODS["good"], "weak": functools.partial(train, signal=0.3)}
    study(tmp_path, methods=methods).run()
    assert [call for call in CALLS if call.startswith("train")] == [f"train 0.3 {seed}" for seed in (1, 2, 3)]
    assert CALLS.count("load") == 3
    CALLS.clear()
    study(tmp_path, methods=methods, data=loader(TARGET.flip(0), 16)).run()
    assert CALLS.count("load") == 6


def test_a_lost_or_damaged_checkpoint_is_trained_again(tmp_path: Path) -> None:
    study(tmp_path).run()
    (tmp_path / "cells" / "good__seed1" / "weights.pt").unlink()
    (tmp_path / "cells" / "weak__seed3" / "weights.pt").write_bytes(b"damaged")
    CALLS.clear()
    study(tmp_path).run()
    assert [call for call in CALLS if call.startswith("train")] == ["train 1.0 1", "train 0.2 3"]
    record = read_record(tmp_path / "cells" / "good__seed1")
    assert record is not None
    assert record.attempts == 2


def test_damaged_rows_are_evaluated_again(tmp_path: Path) -> None:
    study(tmp_path).run()
    for path in (tmp_path / "rows").iterdir():
        path.write_bytes(b"damaged")
    CALLS.clear()
    study(tmp_path).run()
    assert CALLS.count("load") == 6


def test_a_failed_cell_takes_no_other_along(tmp_path: Path) -> None:
    methods = {"good": METHODS["good"], "bad": fails_on_two}
    with pytest.raises(
        EvaluationError, match=r"study, bad, seed 2: ValueError: the learning rate was too high.*Run the"
    ):
        study(tmp_path, methods=methods).run()
    assert sum(call.startswith("train") for call in CALLS) == 5
    record = read_record(tmp_path / "cells" / "bad__seed2")
    assert record is not None
    assert record.status == "failed"
    assert "too high" in (tmp_path / "cells" / "bad__seed2" / "error.txt").read_text()
    CALLS.clear()
    found = study(tmp_path, methods=methods, on_error="drop").run()
    assert [record.seed for record in found.failed] == [2]
    assert found.result.data["seed"].values.tolist() == [1, 3]
    assert any("1 runs failed (bad, seed 2)" in text for text in found.result.warnings)
    assert not any(call.startswith("train") for call in CALLS)


def test_single_cells_run_as_jobs_of_a_sweep(tmp_path: Path) -> None:
    one = study(tmp_path).run(only=[Cell("good", 2)])
    assert one == StudyResult({})
    assert CALLS == ["train 1.0 2"]
    study(tmp_path).run()
    assert CALLS.count("train 1.0 2") == 1


def test_training_functions_may_return_modules(tmp_path: Path) -> None:
    def fit(seed: int) -> nn.Module:
        model = nn.Linear(3, 3)
        nn.init.constant_(model.weight, float(seed))
        return model

    def restored(path: Path) -> nn.Module:
        model = nn.Linear(3, 3)
        model.load_state_dict(torch.load(path, weights_only=True))
        return model

    data = [(noise(0, (60, 3)), TARGET)]
    found = study(tmp_path, methods={"linear": fit}, load_fn=restored, data=data, seeds=[1, 2]).run()
    assert found.result.data.sizes["seed"] == 2
    assert (tmp_path / "cells" / "linear__seed1" / "model.pt").is_file()


def test_several_tasks_are_compared_each_and_together(tmp_path: Path) -> None:
    tasks = {f"task{i}": {"data": loader(TARGET.roll(i), 16), "task": "classification"} for i in range(3)}
    found = study(tmp_path, data=None, tasks=tasks).run()
    assert set(found.tasks) == set(tasks)
    assert found.over_tasks is not None
    assert found.over_tasks.n_tasks == 3
    with pytest.raises(ConfigError, match="3 tasks"):
        _ = found.result


def test_checkpoints_that_exist_are_compared(tmp_path: Path) -> None:
    paths = {}
    for name, signal in (("a", 1.0), ("b", 0.1)):
        (tmp_path / name).mkdir()
        paths[name] = train(0, tmp_path / name, signal)
    found = Study.from_checkpoints(paths, load, DATA, folder=tmp_path / "s", num_classes=3, resamples=200).run().result
    assert found.comparison("accuracy", "a", "b").claim == "these checkpoints"
    CALLS.clear()
    Study.from_checkpoints(paths, load, DATA, folder=tmp_path / "s", num_classes=3, resamples=200).run()
    assert "load" not in CALLS
    with pytest.raises(ConfigError, match=r"no .*gone\.pt"):
        Study.from_checkpoints({"a": tmp_path / "gone.pt"}, load, DATA)
    with pytest.raises(ConfigError, match="'a' has 1, 'b' has 2"):
        Study.from_checkpoints({"a": [paths["a"]], "b": [paths["b"]] * 2}, load, DATA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": {}}, "no methods"),
        ({"methods": {"a": 3}}, r"methods\.a: a int"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "each once"),
        ({"on_error": "ignore"}, "on_error: 'ignore'"),
        ({"data": None}, "both data and tasks, or neither"),
        ({"load_fn": "nothing"}, "load_fn"),
    ],
)
def test_what_cannot_be_studied_is_refused_before_training(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(tmp_path, **changes)
    assert CALLS == []


def test_records_are_plain_json(tmp_path: Path) -> None:
    study(tmp_path).run()
    document = json.loads((tmp_path / "cells" / "good__seed1" / "cell.json").read_text())
    assert document["method"] == "good"
    assert not Path(document["checkpoint"]).is_absolute()


def test_rows_are_kept_by_weights_data_and_task(tmp_path: Path) -> None:
    from fusion_eval.evaluation.rows import Rows

    rows = Rows(torch.arange(3), {"pred": torch.arange(3), "texts": ["a", "b", "c"]})
    cache = RowCache(tmp_path, "data", "task")
    cache.write("model", rows)
    back = cache.read("model")
    assert back is not None
    assert back.columns["texts"] == ["a", "b", "c"]
    assert torch.equal(back.ids, rows.ids)
    for other in (RowCache(tmp_path, "other", "task"), RowCache(tmp_path, "data", "other")):
        assert other.read("model") is None
    assert model_key(Table(torch.zeros(2))) == model_key(Table(torch.zeros(2)))
    assert model_key(Table(torch.zeros(2))) != model_key(Table(torch.ones(2)))
    assert model_key(lambda: None) == ""


def test_another_run_in_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "cells" / "good__seed1").mkdir(parents=True)
    with held(tmp_path), pytest.raises(OutputError, match="another run writes there"):
        study(tmp_path).run()
    with held(tmp_path / "cells" / "good__seed1"), pytest.raises(OutputError, match=r"good__seed1.*another run"):
        study(tmp_path).run(only=[Cell("good", 1)])
    assert CALLS == []
    study(tmp_path).run(only=[Cell("weak", 1)])
    assert CALLS == ["train 0.2 1"]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
from fusion_eval import Study

def train(seed, folder):
    with open("trained.txt", "a") as file:
        file.write(f"{seed}\\n")
    (folder / "half.pt").write_bytes(b"half")
    if seed == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(seed)
    torch.save(nn.Linear(4, 3).state_dict(), folder / "model.pt")
    return folder / "model.pt"

def load(path):
    model = nn.Linear(4, 3)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model

data = [(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3)]
found = Study({"a": train}, load, [0, 1, 2], data, folder="study", options={"num_classes": 3, "resamples": 200}).run()
print(found.result.summaries[0].mean)
"""


@pytest.mark.slow
def test_a_killed_study_goes_on_where_it_was(tmp_path: Path) -> None:
    script = tmp_path / "my_study.py"
    script.write_text(KILLED)

    def started(seed: int, folder: Path) -> subprocess.CompletedProcess[str]:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, str(script), str(seed)]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    first = started(1, tmp_path / "killed")
    assert first.returncode == -9
    assert started(-1, tmp_path / "killed").stdout == started(-1, tmp_path / "whole").stdout != ""
    assert (tmp_path / "killed" / "trained.txt").read_text().split() == ["0", "1", "1", "2"]
