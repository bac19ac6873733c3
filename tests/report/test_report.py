"""Values, averages, shares, the table and the files of a report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fusion_eval.errors import ConfigError, OutputError
from fusion_eval.report.files import write_json, write_text
from fusion_eval.report.items import items_path, read_items, write_items
from fusion_eval.report.receipt import git_state, receipt, redacted
from fusion_eval.report.render import columns_of, title_of
from fusion_eval.report.report import Report, read_report
from fusion_eval.report.table import rows_of
from fusion_eval.report.values import ModelResult, TaskResult, Value, mean_over_tasks


def task(name: str, scores: np.ndarray, **kwargs: object) -> TaskResult:
    value = Value(float(scores.mean()), float(scores.std(ddof=1) / len(scores) ** 0.5), len(scores), True, (0.0, 1.0))
    return TaskResult(
        name, {"accuracy": value}, len(scores), items={"id": np.arange(len(scores)), "correct": scores}, **kwargs
    )  # type: ignore[arg-type]


def models(shared: bool = False, items: int = 400) -> list[ModelResult]:
    rng = np.random.default_rng(0)
    difficulty = rng.random(items)

    def scores(skill: float) -> np.ndarray:
        return (difficulty + 0.3 * rng.random(items) < skill).astype(float)

    def result(name: str, role: str, skills: dict[str, float]) -> ModelResult:
        return ModelResult(
            name, role, tuple(task(t, scores(s)) for t, s in skills.items()), {"all_params": 3}, 1.0, shared
        )

    return [
        result("base", "base", {"a": 0.4, "b": 0.5}),
        result("a", "expert", {"a": 0.95}),
        result("b", "expert", {"b": 0.9}),
        result("merged", "merged", {"a": 0.8, "b": 0.7}),
    ]


def test_a_value_is_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        Value(float("nan"))


def test_averages_take_metrics_that_all_tasks_have() -> None:
    one = TaskResult("a", {"accuracy": Value(0.5, 0.1, 10), "loss": Value(1.0, None, 10, False)}, 10)
    two = TaskResult("b", {"accuracy": Value(0.7, 0.2, 30)}, 30)
    average = ModelResult("m", "merged", (one, two), {}).average()
    assert set(average) == {"accuracy"}
    assert average["accuracy"].value == pytest.approx(0.6)
    assert average["accuracy"].stderr == pytest.approx(math.hypot(0.1, 0.2) / 2)
    assert average["accuracy"].n == 40


def test_the_share_s_error_is_the_delta_method_s_on_paired_items() -> None:
    found = models()
    row = rows_of(found)[0]
    merged, expert = found[3].tasks[0].items["correct"], found[1].tasks[0].items["correct"]
    assert row.share.value == pytest.approx(merged.mean() / expert.mean())
    rng = np.random.default_rng(1)
    draws = rng.integers(0, len(merged), (4000, len(merged)))
    bootstrap = merged[draws].mean(1) / expert[draws].mean(1)
    assert row.share.stderr == pytest.approx(bootstrap.std(), rel=0.06)


@pytest.mark.parametrize("column", ["base", "merged", "share"])
def test_averages_over_shared_items_resample_items(column: str) -> None:
    found = models(shared=True)
    average = rows_of(found)[-1]
    arrays = {m.name: [t.items["correct"] for t in m.tasks] for m in found}
    rng = np.random.default_rng(1)
    draws = rng.integers(0, 400, (4000, 400))
    if column == "share":
        merged, experts = arrays["merged"], [arrays["a"][0], arrays["b"][0]]
        bootstrap = np.mean([m[draws].mean(1) / e[draws].mean(1) for m, e in zip(merged, experts, strict=True)], axis=0)
    else:
        bootstrap = np.mean([scores[draws].mean(1) for scores in arrays[column]], axis=0)
    assert getattr(average, column).stderr == pytest.approx(bootstrap.std(), rel=0.06)
    independent = getattr(rows_of(models(shared=False))[-1], column).stderr
    assert getattr(average, column).stderr > 1.1 * independent


def test_a_report_is_written_whole_and_read_back(tmp_path: Path) -> None:
    report = Report(
        "complete",
        tuple(models()),
        {"seed": 1, "overrides": ["a=1"]},
        {"base": {"source": "x", "fingerprint": "f"}},
        {"merge": 1.5},
        ("note",),
    )
    report.write(tmp_path)
    assert read_report(tmp_path).table == report.table
    assert [model.tasks for model in read_report(tmp_path).models] == [
        model.tasks for model in report.without_items().models
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]
    text = (tmp_path / "report.md").read_text()
    assert "| a | 400 |" in text
    assert "- note" in text
    assert "`fusion_eval a=1`" in text


def test_reading_what_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a readable report"):
        read_report(tmp_path)
    (tmp_path / "report.json").write_text('{"schema": 99}')
    with pytest.raises(ConfigError, match="report schema 99; expected schema 1"):
        read_report(tmp_path)


def test_json_refuses_what_is_not_finite_and_keeps_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/x.txt: cannot be written \("):
        write_text(tmp_path / "file" / "x.txt", "")


def test_items_come_back(tmp_path: Path) -> None:
    model = models()[3]
    write_items(tmp_path, model)
    assert np.array_equal(read_items(tmp_path, "merged", "a")["correct"], model.tasks[0].items["correct"])
    write_items(tmp_path, replace(model, name="../../etc/evil"))
    assert len({items_path(tmp_path, name, "a") for name in ("x/y", "x_y", "x y", "é", "..", "_")}) == 6
    assert all(tmp_path in path.resolve().parents for path in tmp_path.rglob("*"))


def test_partial_is_told() -> None:
    partial = ModelResult("merged", "merged", (task("a", np.ones(3), partial=True),), {})
    report = Report("complete", (partial,))
    assert report.partial
    assert "PARTIAL" in title_of(report)


@pytest.mark.parametrize(
    ("status", "mark"), [("running", "UNFINISHED"), ("failed", "FAILED"), ("complete", "intervals")]
)
def test_a_run_that_did_not_end_is_told(status: str, mark: str) -> None:
    assert mark in title_of(Report(status, tuple(models()))).rpartition("; ")[2]


def test_pools_whose_experts_have_no_task_show_one_column_per_model() -> None:
    found = [replace(model, name=f"m{i}", role="expert") for i, model in enumerate(models())]
    header, rows = columns_of(Report("complete", tuple(found)))
    assert header == ["task", "m0", "m1", "m2", "m3"]
    assert [row[0] for row in rows] == ["a", "b", "average"]


def test_secrets_do_not_reach_the_report() -> None:
    config = {"hub": {"token": "hf_x", "api_key": "k", "path": "p"}, "list": [{"password": "s"}], "tokenizer": "bert"}
    assert redacted(config) == {
        "hub": {"token": "***", "api_key": "***", "path": "p"},
        "list": [{"password": "***"}],
        "tokenizer": "bert",
    }
    assert receipt({}, ["modelpool.token=abc", "seed=1"], {})["overrides"] == ["modelpool.token=***", "seed=1"]


def test_numbers_that_json_lacks_do_not_stop_a_report(tmp_path: Path) -> None:
    config = {"method": {"clip": float("inf"), "rest": [float("nan"), 0.5]}}
    Report("complete", (), receipt(config, [], {})).write(tmp_path)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["receipt"]["config"]["method"] == {"clip": "inf", "rest": ["nan", 0.5]}


def test_a_count_of_unscored_items_is_no_score() -> None:
    def result(name: str, **metrics: Value) -> TaskResult:
        return TaskResult(name, metrics, 4)

    unscored = Value(4.0, None, 4, None)
    mixed = ModelResult("m", "merged", (result("judged", unscored=unscored), result("plain", acc=Value(0.5))), {})
    assert [(row.task, row.merged and row.merged.value) for row in rows_of([mixed])][:2] == [
        ("judged", None), ("plain", 0.5),
    ]  # fmt: skip
    assert rows_of([ModelResult("m", "merged", (result("judged", unscored=unscored),), {})]) == ()


def test_a_report_without_tasks_says_so() -> None:
    assert (
        title_of(Report("complete", (ModelResult("merged", "merged", (), {}),))) == "no tasks, so nothing is measured"
    )


def test_git_state_outside_a_repository(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def right(n: int) -> Value:
    from fusion_eval.stats import wilson

    return Value(1.0, 0.0, n, True, wilson(n, n))


def test_an_average_of_nothing_but_right_answers_has_an_interval_all_the_same() -> None:
    average = mean_over_tasks([right(10), right(10)])
    assert average.interval[1] == 1.0
    assert right(10).interval[0] <= average.interval[0] < 0.9
    assert mean_over_tasks([right(10), right(10)], 0.0).interval == pytest.approx(right(10).interval)


def test_the_average_s_interval_covers_as_often_as_it_says() -> None:
    from fusion_eval.stats import wilson

    rng = np.random.default_rng(0)
    chances, n, covered = np.array([0.98, 0.9, 0.6]), 60, 0
    for hits in rng.binomial(n, chances, (2000, 3)):
        values = [Value(h / n, (h / n * (1 - h / n) / (n - 1)) ** 0.5, n, True, wilson(int(h), n)) for h in hits]
        low, high = mean_over_tasks(values).interval
        assert 0 <= low <= high <= 1
        covered += low <= chances.mean() <= high
    assert 0.93 < covered / 2000 < 0.97


def mixed() -> list[ModelResult]:
    def result(name: str, role: str, miou: float, error: float) -> ModelResult:
        maps = TaskResult("maps", {"miou": Value(miou, 0.1, 10, True, (0.1, 0.9)), "dice": Value(0.5)}, 10)
        depth = TaskResult("depth", {"rmse": Value(error, 0.1, 20, False, (0.1, 3.0))}, 20)
        return ModelResult(name, role, (maps, depth), {})

    return [result("base", "base", 0.3, 2.0), result("merged", "merged", 0.5, 1.5)]


def test_tasks_of_different_metrics_show_their_own(tmp_path: Path) -> None:
    report = Report("complete", tuple(mixed()), {"overrides": []})
    header, cells = columns_of(report)
    assert header == ["task", "metric", "items", "base", "merged"]
    assert cells == [
        ["maps", "miou (%)", "10", "30.0 [10.0, 90.0]", "50.0 [10.0, 90.0]"],
        ["depth", "rmse", "20", "2.0000 [0.1000, 3.0000]", "1.5000 [0.1000, 3.0000]"],
    ]
    assert title_of(report).startswith("the main metric of each task with 95 % intervals")
    report.write(tmp_path)
    assert columns_of(read_report(tmp_path)) == (header, cells)


def test_models_beside_each_other_show_each_task_s_own_metric() -> None:
    runs = [replace(model, role="expert", name=f"m{i}") for i, model in enumerate(mixed())]
    header, cells = columns_of(Report("complete", tuple(runs)))
    assert header == ["task", "metric", "m0", "m1"]
    assert [row[:2] for row in cells] == [["maps", "miou (%)"], ["depth", "rmse"]]
    assert "-" not in [cell for row in cells for cell in row]


def test_one_metric_in_all_tasks_needs_no_column() -> None:
    header, _ = columns_of(Report("complete", tuple(models())))
    assert "metric" not in header
    assert rows_of(models())[-1].metric == "accuracy"
