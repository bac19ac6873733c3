"""The main program on the embedded experts: what is evaluated, saved and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fusion_eval.assets.digits import VIEWS, checkpoint_path
from fusion_eval.build import build_option
from fusion_eval.errors import ConfigError
from fusion_eval.report.items import read_items
from fusion_eval.report.report import Report, read_report
from tests.program.running import run


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("default")
    return run(folder, "seed=3"), folder


def test_the_default_evaluates_base_experts_and_merge(default: tuple[Report, Path]) -> None:
    report, _ = default
    assert report.status == "complete"
    assert not report.partial
    assert [model.name for model in report.models] == ["base", *VIEWS, "merged"]
    assert [[task.name for task in model.tasks] for model in report.models[1:-1]] == [[view] for view in VIEWS]
    table = {row.task: row for row in report.table}
    assert list(table) == [*VIEWS, "average"]
    average = table["average"]
    assert average.base.value < average.merged.value < average.expert.value
    assert average.share.value == pytest.approx(
        sum(table[view].merged.value / table[view].expert.value for view in VIEWS) / len(VIEWS)
    )
    for row in report.table:
        for value in (row.base, row.expert, row.merged, row.share):
            assert value.interval[0] < value.value < value.interval[1]


def test_task_arithmetic_is_what_was_evaluated(default: tuple[Report, Path]) -> None:
    _, folder = default
    base = load_file(checkpoint_path("base"))
    experts = [load_file(checkpoint_path(view)) for view in VIEWS]
    from fusion_eval.assets.digits import DigitsDataset, DigitsEncoder, class_codes

    state = {
        name: (tensor.float() + 0.3 * sum(expert[name].float() - tensor.float() for expert in experts)).half()
        for name, tensor in base.items()
    }
    model = DigitsEncoder()
    model.load_state_dict(state)
    data = DigitsDataset("rot90", "test")
    with torch.inference_mode():
        pred = (model.eval()(data.images) @ class_codes("rot90").T).argmax(1)
    items = read_items(folder / "items", "merged", "rot90")
    assert (items["id"] == range(500)).all()
    assert (torch.from_numpy(items["pred"]) == pred).float().mean() > 0.995
    assert (items["target"] == data.labels.numpy()).all()


def test_errors_of_averages_over_shared_images_are_larger_than_independent_ones(default: tuple[Report, Path]) -> None:
    row = default[0].table[-1]
    merged = default[0].model("merged")
    independent = sum(task.metrics["accuracy"].stderr ** 2 for task in merged.tasks) ** 0.5 / len(merged.tasks)
    assert row.merged.stderr == pytest.approx(merged.average()["accuracy"].stderr)
    assert row.merged.stderr > 1.1 * independent


def test_the_report_on_disk(default: tuple[Report, Path]) -> None:
    report, folder = default
    stored = json.loads((folder / "report.json").read_text())
    assert stored["schema"] == 1
    assert set(stored["report"]) == {"model_info", *VIEWS, "average"}
    assert stored["report"]["model_info"]["all_params"] == 147168
    assert len({found["fingerprint"] for found in stored["inputs"].values()}) == 9
    receipt = stored["receipt"]
    assert receipt["seed"] == 3
    assert receipt["config"]["method"]["_target_"].endswith("TaskArithmetic")
    assert {"python", "torch", "fusion_eval", "hydra-core"} <= set(receipt["versions"])
    assert {"check", "open data", "merge", "evaluate", "total"} <= set(stored["seconds"])
    again = read_report(folder)
    assert again.table == report.table
    assert again.as_dict() == report.as_dict() | {"models": again.as_dict()["models"]}
    assert [model.average() for model in again.models] == [model.average() for model in report.models]
    assert "| average | 4,000 |" in (folder / "report.md").read_text()


def test_objective_names_a_number_or_says_which_there_are(default: tuple[Report, Path]) -> None:
    report, _ = default
    assert report.objective("average.accuracy") == report.model("merged").average()["accuracy"].value
    assert report.objective("base/rot90.loss") == report.models[0].as_dict()["rot90"]["loss"]
    with pytest.raises(ConfigError, match=r"objective: no number 'average.acuracy'.*Did you mean 'average.accuracy'"):
        report.objective("average.acuracy")


def test_saving_evaluates_what_was_written(tmp_path: Path) -> None:
    report = run(tmp_path / "out", f"save={tmp_path / 'merged'}", "limit=20", "program.experts=none")
    memory = run(tmp_path / "mem", "limit=20", "program.experts=none")
    assert report.table == memory.table
    assert report.partial
    card = (tmp_path / "merged" / "README.md").read_text()
    assert all(f"| {found['fingerprint'][:16]}" in card.replace("`", "") for found in report.inputs.values())
    average = f"{100 * report.table[-1].merged.value:.1f}"
    row = next(line for line in card.splitlines() if line.startswith("| average"))
    assert average in row
    assert "Nothing was measured" not in card
    saved = load_file(next((tmp_path / "merged").glob("*.safetensors")))
    assert set(saved) == set(load_file(checkpoint_path("base")))
    with pytest.raises(ConfigError, match=r"save: the folder .* is not empty"):
        run(tmp_path / "out", f"save={tmp_path / 'merged'}")


def test_a_model_per_task_is_saved_compactly_and_evaluated_from_there(tmp_path: Path) -> None:
    words = ("limit=20", "program.experts=none")
    report = run(tmp_path / "out", "method=emr", f"save={tmp_path / 'tasks'}", *words)
    memory = run(tmp_path / "mem", "method=emr", *words)
    assert report.table == memory.table
    again = run(tmp_path / "again", "method=saved_tasks", f"method.path={tmp_path / 'tasks'}", *words)
    assert again.table == report.table
    names = sorted(path.name for path in (tmp_path / "tasks").iterdir())
    assert names == sorted(
        [*(f"task-{view}.safetensors" for view in VIEWS), "README.md", "recipe.yml", "shared.safetensors", "tasks.json"]
    )
    assert (tmp_path / "tasks" / "task-rot90.safetensors").stat().st_size < checkpoint_path("rot90").stat().st_size / 8
    made = run(tmp_path / "made", "method=recipe", f"method.path={tmp_path / 'tasks' / 'recipe.yml'}", *words)
    assert made.table == report.table


@pytest.mark.parametrize("saved", [False, True])
def test_a_terminal_sees_how_fast_the_merge_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    words = [
        "taskpool=dummy",
        "program.experts=none",
        "program.base=false",
        *([f"save={tmp_path / 'm'}"] if saved else []),
    ]
    run(tmp_path / "silent", *[word.replace("/m", "/n") for word in words])
    assert "merge:" not in capsys.readouterr().err
    monkeypatch.setattr("fusion_eval.program.fusion.FusionProgram._bars", lambda program: True)
    run(tmp_path / "shown", *words, *([f"save={tmp_path / 'two'}"] if saved else []))
    shown = capsys.readouterr().err
    assert "merge:" in shown
    assert "B/s" in shown


@pytest.mark.parametrize(("experts", "models"), [("none", 2), ("all", 10)])
def test_which_experts_are_evaluated(tmp_path: Path, experts: str, models: int) -> None:
    report = run(tmp_path, f"program.experts={experts}", "fast_dev_run=true")
    assert len(report.models) == models
    assert report.partial
    assert len(report.models[-2].tasks) == 8
    assert (report.table[0].expert is None) == (experts == "none")


def test_a_dry_run_checks_and_opens_but_measures_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, "dry_run=true")
    assert report.status == "dry run"
    assert report.models == ()
    assert "9 models (base, upright" in report.notes[0]
    assert "8 tasks (upright" in report.notes[0]
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "dry run"


def test_evaluate_takes_each_model(tmp_path: Path) -> None:
    report = run(tmp_path, "program=evaluate", "program.models=[base,edges]", "limit=10")
    assert [(model.name, model.role, len(model.tasks)) for model in report.models] == [
        ("base", "base", 8),
        ("edges", "expert", 8),
    ]
    with pytest.raises(ConfigError, match=r"program.models: no model 'edgs'.*Did you mean 'edges'"):
        run(tmp_path, "program=evaluate", "program.models=[edgs]")


def test_evaluate_does_not_save(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"save: set to '.*'; expected unset"):
        run(tmp_path, "program=evaluate", f"save={tmp_path / 'x'}")


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output: .* cannot be written"):
        run(tmp_path / "file" / "out", "limit=2", "program.experts=none")


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(i), "method=dare", "limit=50", f"seed={seed}") for i, seed in enumerate((1, 1, 2))]
    assert runs[0].table == runs[1].table
    assert runs[0].table != runs[2].table


def test_a_killed_run_leaves_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusion_eval.program.base_program import BaseProgram

    evaluate = BaseProgram.evaluate_stored

    def killed(program: BaseProgram, name: str, *rest: Any) -> Any:
        if name == "rot90":
            raise KeyboardInterrupt
        return evaluate(program, name, *rest)

    monkeypatch.setattr(BaseProgram, "evaluate_stored", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "limit=10")
    stored = read_report(tmp_path)
    assert stored.status == "running"
    assert [model.name for model in stored.models] == ["base", "upright", "negative"]


def test_counters_in_which_models_differ_are_noted(tmp_path: Path) -> None:
    from fusion_eval.modelpool import ModulePool
    from fusion_eval.program import FusionProgram
    from fusion_eval.taskpool import DummyTaskPool

    models = [torch.nn.BatchNorm1d(3) for _ in range(3)]
    models[1].num_batches_tracked += 5
    method = build_option("method", "task_arithmetic")
    pool = ModulePool(models[0], {"a": models[1], "b": models[2]})
    report = FusionProgram(method, pool, DummyTaskPool(), output=tmp_path).run()
    assert report.notes[0].startswith(
        "1 tensors (num_batches_tracked): torch.int64 tensor copied from the reference; a differ"
    )
