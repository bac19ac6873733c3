"""The same report from one, two and three processes, in a run, in a sweep and under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.dist

TASKS = """
_target_: fusion_eval.taskpool.ImageClassificationTaskPool
metrics: all
dataloader_kwargs: {batch_size: 8}
test_datasets:
  many: {_target_: tests.program.uneven_tasks.Points, items: 719}
  eleven: {_target_: tests.program.uneven_tasks.Points, items: 11}
  two: {_target_: tests.program.uneven_tasks.Points, items: 2}
"""
BROKEN = """
_target_: fusion_eval.taskpool.ImageClassificationTaskPool
dataloader_kwargs: {batch_size: 8}
test_datasets:
  broken: {_target_: tests.program.uneven_tasks.Points, items: 40, broken: 11}
"""

ANY_TASK = """
_target_: fusion_eval.taskpool.TaskPool
task: classification
num_classes: 5
dataloader_kwargs: {batch_size: 8}
test_datasets:
  many: {_target_: tests.program.uneven_tasks.Points, items: 300}
  eleven: {_target_: tests.program.uneven_tasks.Points, items: 11}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("processes")
    for group, name, text in [
        ("taskpool", "uneven", TASKS),
        ("taskpool", "broken", BROKEN),
        ("taskpool", "any_task", ANY_TASK),
        ("modelpool", "nets", "_target_: tests.program.uneven_tasks.NetPool\n"),
    ]:
        path = place / "config" / group / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def command(folder: Path, repo_root: Path, *words: str, start: tuple[str, ...] = ("-m", "fusion_eval")) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(repo_root), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *start, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def measured(folder: Path) -> dict[str, Any]:
    """The part of a report that may not depend on how it was computed."""
    report = json.loads((folder / "report.json").read_text())
    assert report["status"] == "complete"
    models = {name: {key: model[key] for key in model if key != "seconds"} for name, model in report["models"].items()}
    return {"models": models, "table": report["table"], "inputs": report["inputs"]}


@pytest.fixture(scope="module")
def single(folder: Path, repo_root: Path) -> dict[str, Any]:
    done = command(folder, repo_root, "modelpool=nets", "taskpool=uneven", "output=single")
    assert done.returncode == 0, done.stderr
    found = measured(folder / "single")
    tasks = found["models"]["merged"]["tasks"]
    assert [tasks[name]["n"] for name in ("many", "eleven", "two")] == [719, 11, 2]
    return found


@pytest.mark.parametrize(("devices", "strategy"), [(2, "auto"), (3, "ddp_spawn"), (2, "ddp_fork")])
def test_processes_change_no_bit(
    folder: Path, repo_root: Path, single: dict[str, Any], devices: int, strategy: str
) -> None:
    output = f"{strategy}{devices}"
    words = (f"fabric.devices={devices}", f"+fabric.strategy={strategy}", f"output={output}")
    done = command(folder, repo_root, "modelpool=nets", "taskpool=uneven", "fabric=cpu", *words)
    assert done.returncode == 0, done.stderr
    assert measured(folder / output) == single
    assert json.loads((folder / output / "report.json").read_text())["receipt"]["devices"]["processes"] == devices
    assert sorted(path.name for path in (folder / output / "items" / "merged").iterdir()) == [
        "eleven.npz",
        "many.npz",
        "two.npz",
    ]


@pytest.mark.parametrize("taskpool", ["uneven", "any_task"])
def test_processes_change_no_comparison(folder: Path, repo_root: Path, taskpool: str) -> None:
    words = ("program=compare", "modelpool=nets", f"taskpool={taskpool}", "program.methods=[simple_average]")
    for name, fabric in (("one", "cpu"), ("both", "cpu2")):
        done = command(folder, repo_root, *words, f"fabric={fabric}", f"output={taskpool}_{name}")
        assert done.returncode == 0, done.stderr
    one, both = folder / f"{taskpool}_one", folder / f"{taskpool}_both"
    assert measured(both) == measured(one)
    assert (both / "comparison" / "many.json").read_text() == (one / "comparison" / "many.json").read_text()
    notes = [json.loads((place / "report.json").read_text())["notes"] for place in (one, both)]
    assert notes[0] == notes[1]


def test_a_sweep_of_two_processes_each(folder: Path, repo_root: Path, single: dict[str, Any]) -> None:
    words = (
        "modelpool=nets",
        "taskpool=uneven",
        "method=task_arithmetic,simple_average",
        "fabric=cpu2",
        "output=sweep",
    )
    done = command(folder, repo_root, "-m", *words)
    assert done.returncode == 0, done.stderr
    assert measured(folder / "sweep" / "0") == single
    assert measured(folder / "sweep" / "1")["models"]["base"] == single["models"]["base"]
    assert measured(folder / "sweep" / "1")["models"]["merged"] != single["models"]["merged"]
    assert len(json.loads((folder / "sweep" / "sweep.json").read_text())["jobs"]) == 2


def test_torchrun(folder: Path, repo_root: Path, single: dict[str, Any]) -> None:
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fusion_eval")
    words = ("modelpool=nets", "taskpool=uneven", "fabric=multi_node", "fabric.accelerator=cpu", "output=torchrun")
    done = command(folder, repo_root, *words, start=start)
    assert done.returncode == 0, done.stderr
    assert measured(folder / "torchrun") == single


def test_an_error_on_one_rank_ends_all_of_them_with_one_message(folder: Path, repo_root: Path) -> None:
    done = command(folder, repo_root, "modelpool=nets", "taskpool=broken", "fabric=cpu2", "output=broken")
    assert done.returncode == 1
    assert "model 'base', task 'broken': 1 of 16 outputs are NaN or infinite (items 11)" in done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads((folder / "broken" / "report.json").read_text())
    assert report["status"] == "failed"
    assert "items 11" in report["error"]


@pytest.mark.parametrize("method", ["dare", "knots_ties"])
def test_ranks_save_what_one_process_saves(tmp_path: Path, repo_root: Path, method: str) -> None:
    words = (f"method={method}", "taskpool=dummy", "program.base=false", "program.experts=none", "seed=3")
    shards = "program.shard_bytes=100000"
    for name, fabric in (("one", "cpu"), ("two", "cpu2")):
        done = command(tmp_path, repo_root, *words, shards, f"fabric={fabric}", f"save={name}", f"output=run_{name}")
        assert done.returncode == 0, done.stderr
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two
    assert len([name for name in one if name.endswith(".safetensors")]) > 2


def test_what_cannot_be_identified_is_saved_by_one_rank(folder: Path, repo_root: Path) -> None:
    words = ("modelpool=nets", "taskpool=dummy", "fabric=cpu2", "save=saved", "output=saving")
    done = command(folder, repo_root, *words)
    assert done.returncode == 0, done.stderr
    assert (folder / "saved" / "recipe.yml").is_file()
    assert (folder / "saved" / "model.safetensors").is_file()
