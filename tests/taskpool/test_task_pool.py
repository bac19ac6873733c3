"""Any task as a task pool: the numbers of `compare`, intervals, data of every domain, merged and evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fusion_eval import compare
from fusion_eval.errors import ConfigError, DataError, EvaluationError
from fusion_eval.report.values import TaskResult
from fusion_eval.taskpool import TaskPool
from tests.program.running import run
from tests.taskpool import toy_tasks as toys

HERE = "tests.taskpool.toy_tasks"
MAPS = {"_target_": f"{HERE}.maps"}
NUMBERS = {"_target_": f"{HERE}.numbers"}


def pool_of(data: Any, **options: Any) -> TaskPool:
    pool = TaskPool(data, progress=False, **options)
    assert pool.faults() == []
    return pool


def seeded(make: Any, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = make()
    return model


def only(pool: TaskPool, model: nn.Module) -> TaskResult:
    return pool.results(model).tasks[0]


def test_segmentation_has_the_numbers_of_compare_and_intervals() -> None:
    model = seeded(toys.map_model)
    options: dict[str, Any] = {"task": "segmentation", "num_classes": 3, "ignore_index": 255}
    found = only(pool_of({"maps": MAPS}, **options), model)
    other = compare({"a": model, "b": seeded(toys.map_model, 1)}, toys.maps(), **options)
    assert list(found.metrics) == ["miou", "dice", "pixel_acc", "precision", "recall"]
    for name, value in found.metrics.items():
        assert value.value == pytest.approx(float(other.data[name].sel(dict(method="a"))[0]), abs=1e-12)
        assert value.interval is not None
        assert value.interval[0] < value.value < value.interval[1]
    assert found.n == toys.ITEMS


def test_regression_counts_its_outputs_from_the_targets() -> None:
    model = seeded(lambda: nn.Linear(3, 2))
    found = only(pool_of({"numbers": {**NUMBERS, "outputs": 2}}, task="regression"), model)
    assert {"mse", "r2", "pearson"} <= set(found.metrics)
    assert all(value.interval is not None for value in found.metrics.values())
    assert found.metrics["mse"].higher_is_better is False


def test_images_of_different_sizes_come_as_lists() -> None:
    pytest.importorskip("pycocotools")
    found = only(pool_of({"boxes": {"_target_": f"{HERE}.Boxes"}}, task="detection"), toys.Detector())
    assert 0 < found.metrics["map"].value < 1
    assert found.metrics["map"].interval is not None
    assert found.metrics["iou"].interval is not None


def test_items_of_any_data_set_can_be_compared_as_well() -> None:
    pytest.importorskip("pycocotools")
    other = toys.Detector()
    other.shift.data += 1.0
    found = compare({"a": toys.Detector(), "b": other}, toys.Boxes(), task="detection", metrics=["iou"])
    assert found.comparison("iou", "a", "b").verdict == "better"


@pytest.mark.parametrize(
    "task", [f"{HERE}.OWN_TASK", {"_target_": f"{HERE}.own_task"}, toys.OWN_TASK], ids=["name", "node", "object"]
)
def test_tasks_of_one_s_own(task: Any) -> None:
    model = seeded(toys.number_model)
    found = only(pool_of({"numbers": NUMBERS}, task=task), model)
    x, y = toys.numbers().tensors
    with torch.no_grad():
        error = float((model(x)[:, 0] / 2 - y).abs().mean())
    assert found.metrics["error"].value == pytest.approx(error, abs=1e-6)


def test_data_sets_may_be_measured_differently() -> None:
    options = {"a": {"metrics": ["mae"]}, "b": {"task": f"{HERE}.OWN_TASK", "metrics": None}}
    pool = pool_of({"a": NUMBERS, "b": NUMBERS}, task="regression", metrics=["mse", "r2"], per_task=options)
    first, second = pool.results(seeded(toys.number_model)).tasks
    assert (list(first.metrics), list(second.metrics)) == (["mae"], ["error"])


def test_metrics_and_predict_functions_as_nodes() -> None:
    metrics = {"mae": {"_target_": "torchmetrics.regression.MeanAbsoluteError"}}
    pool = pool_of({"numbers": NUMBERS}, task="regression", metrics=metrics, predict_fn=f"{HERE}.halves")
    model = seeded(toys.number_model)
    assert only(pool, model).metrics["mae"].value == pytest.approx(
        only(pool_of({"n": NUMBERS}, task=toys.OWN_TASK), model).metrics["error"].value
    )


def test_a_metric_without_a_form_says_why_it_has_no_interval() -> None:
    from torchmetrics.aggregation import MaxMetric

    class Largest(MaxMetric):
        higher_is_better = True

        def update(self, preds: Any, target: Any) -> None:
            super().update((preds - target).abs())

    found = only(
        pool_of({"numbers": NUMBERS}, task="regression", metrics={"largest": Largest()}), seeded(toys.number_model)
    )
    assert found.metrics["largest"].interval is None
    assert any(note.startswith("largest: no interval, since") for note in found.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "segmentatoin"}, "segmentation"),
        ({"task": "regression", "metrics": ["mea"]}, "or 'mae'?"),
        ({"task": f"{HERE}.NOT_A_TASK"}, "a fusion_eval.Task"),
        ({"task": f"{HERE}.NOWHERE"}, "NOWHERE"),
        ({"task": "regression", "per_task": {"number": {}}}, "Did you mean 'numbers'"),
        ({"task": "regression", "per_task": {"numbers": {"metric": 1}}}, "Did you mean 'metrics'"),
        ({"task": "regression", "dataloader_kwargs": {"shuffle": True}}, "data set's order"),
        ({"task": "regression", "prob_metrics": ["auroc"]}, "no metric auroc"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_data_are_opened(options: Any, message: str) -> None:
    faults = TaskPool({"numbers": NUMBERS}, **options).faults()
    assert message in str(ConfigError(*faults))


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (MAPS, {"task": "segmentation"}, DataError, "num_classes"),
        (MAPS, {"task": "segmentation", "num_classes": 3}, DataError, "labels [255] for 3 classes"),
        ({**MAPS, "items": 0}, {"task": "segmentation", "num_classes": 3}, DataError, "no items"),
        (MAPS, {"task": "segmentation", "num_classes": 3, "fields": ["input"]}, DataError, "2 parts"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_a_model_runs(
    data: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        TaskPool({"maps": data}, **options).setup()
    assert message in str(caught.value)


def test_outputs_that_are_not_finite_name_the_model() -> None:
    model = seeded(toys.number_model)
    nn.init.constant_(model.bias, torch.nan)  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match=r"model 'spoilt', task 'numbers'.*NaN"):
        pool_of({"numbers": NUMBERS}, task="regression").results(model, "spoilt")


def test_a_limit_takes_the_first_items() -> None:
    pool = pool_of({"numbers": NUMBERS}, task="regression", dataloader_kwargs={"batch_size": 4})
    pool.restrict(10, False)
    found = only(pool, seeded(toys.number_model))
    assert (found.n, found.partial) == (10, True)


def test_merged_models_are_evaluated_and_compared(tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "one", "two")):
        torch.save(seeded(toys.map_model, seed).state_dict(), tmp_path / f"{name}.pt")
    modelpool = {
        "_target_": "fusion_eval.modelpool.CheckpointPool",
        "base": str(tmp_path / "base.pt"),
        "experts": {name: str(tmp_path / f"{name}.pt") for name in ("one", "two")},
        "skeleton": {"_target_": f"{HERE}.map_model"},
    }
    taskpool = {
        "_target_": "fusion_eval.taskpool.TaskPool",
        "test_datasets": {"one": MAPS, "two": {**MAPS, "seed": 5}},
        "task": "segmentation",
        "num_classes": 3,
        "ignore_index": 255,
        "progress": False,
    }
    parts: Any = {"modelpool": modelpool, "taskpool": taskpool}
    first = run(tmp_path / "first", "method=task_arithmetic", "fabric=cpu", **parts)
    assert [model.name for model in first.models] == ["base", "one", "two", "merged"]
    again = run(tmp_path / "second", "program=compare", "program.methods=[simple_average]", "fabric=cpu", **parts)
    tested = {path.name for path in (tmp_path / "second" / "comparison").glob("*.json")}
    assert tested == {"one.json", "two.json"}
    assert not [note for note in again.notes if "not compared" in note]
    stored = run(tmp_path / "third", "program=compare", f"program.runs=[{tmp_path / 'first'}]", "fabric=cpu", **parts)
    assert not [note for note in stored.notes if "not compared" in note]


def test_what_does_not_vary_has_no_interval_of_zero_width() -> None:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([1.0, 0.0])
    pool = pool_of({"t": TensorDataset(torch.randn(30, 3), torch.zeros(30).long())}, num_classes=2)
    found = only(pool, model)
    assert found.metrics["f1"].value == 1.0
    assert found.metrics["f1"].interval is None
    assert found.metrics["f1"].stderr is None
    assert any(note.startswith("f1: no interval, since every resample") for note in found.notes)
    assert found.metrics["accuracy"].interval == pytest.approx((0.8865, 1.0), abs=1e-4)
    assert "f1: 1 of 2 classes never occur in the targets: 1" in found.notes


def test_constant_targets_have_no_correlation() -> None:
    pool = pool_of({"t": TensorDataset(toys.noise(0, 20, 3), torch.ones(20))}, task="regression")
    found = only(pool, seeded(toys.number_model))
    assert {"pearson", "spearman"}.isdisjoint(found.metrics)
    assert "spearman: no value, since the targets do not vary" in found.notes


def test_texts_come_as_pytorch_collates_them() -> None:
    class Echo(nn.Module):
        def forward(self, x: Any) -> list[str]:
            return [text.upper() for text in x]

    data = [(f"word {i}", f"WORD {i % 3}") for i in range(12)]
    found = only(pool_of({"t": data}, task="text", dataloader_kwargs={"batch_size": 5}), Echo())
    assert found.n == 12
    assert found.metrics["exact_match"].value == 3 / 12


def test_documents_of_queries() -> None:
    data = [(toys.noise(i, 3), (int(i % 3 == 0), i // 6)) for i in range(60)]
    pool = pool_of({"t": data}, task="retrieval")
    found = only(pool, seeded(lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))))
    assert found.n == 60
    assert len(found.forms["retrieval_map"]) == 10
    assert "retrieval_map" not in found.items
