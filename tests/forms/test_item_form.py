"""Metrics by items: equal to the metric itself on resampled data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fusion_eval.evaluation.measure import measure
from fusion_eval.forms.auroc import linear_metric, mean_auroc
from fusion_eval.forms.item_form import Subject, item_form
from fusion_eval.forms.weighted import weighted_form
from fusion_eval.stats.item_metric import ItemMetric
from fusion_eval.task import Task, get_task
from tests.task.measuring import rows_of
from tests.task.tables import Listed, Table, loader, noise

N = 40
CLASSIFICATION = ["accuracy", "f1", "precision", "recall", "auroc", "ece", "nll", "brier", "mcc", "f1_micro", "kappa"]
BINARY = ["accuracy", "f1", "precision", "recall", "specificity", "auroc", "average_precision", "ece", "nll"]
REGRESSION = ["mse", "mae", "rmse", "r2", "pearson", "spearman", "kendall"]
GROUPS = ["adjusted_rand", "rand", "normalized_mutual_info", "homogeneity", "completeness", "v_measure"]
GROUPS += ["fowlkes_mallows", "mutual_info"]
MULTILABEL = ["accuracy", "exact_match", "hamming", "auroc", "average_precision", "f1"]


def case(name: str) -> tuple[Any, Any, int | None, list[str] | None]:
    """(outputs, targets, classes, metrics) of a task with N items."""
    labels = torch.arange(N) % 3
    y = noise(1, (N,))
    cases: dict[str, tuple[Any, Any, int | None, list[str] | None]] = {
        "classification": (nn.functional.one_hot(labels, 3) + noise(2, (N, 3)), labels, 3, CLASSIFICATION),
        "binary": (noise(2, (N,)), (noise(3, (N,)) > 0).long(), None, BINARY),
        "multilabel": (noise(2, (N, 3)), (noise(3, (N, 3)) > 0).long(), 3, MULTILABEL),
        "regression": (y + noise(2, (N,), 0.5), y, None, REGRESSION),
        "segmentation": (noise(2, (N, 3, 4, 4)), whole_numbers(3, (N, 4, 4)), 3, None),
        "image_quality": (
            noise(1, (N, 1, 16, 16)).sigmoid(),
            noise(2, (N, 1, 16, 16)).sigmoid(),
            None,
            ["ssim", "psnr"],
        ),
        "clustering": ((labels + whole_numbers(2, (N,))) % 3, labels, None, GROUPS),
        "nominal": ((labels + whole_numbers(2, (N,))) % 3, labels, 3, None),
        "language_modeling": (noise(2, (N, 5, 4)), whole_numbers(4, (N, 5)), None, None),
    }
    return cases[name]


def whole_numbers(below: int, shape: tuple[int, ...]) -> Any:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(0))


def resampled(value: Any, index: NDArray[np.int64]) -> Any:
    return value[torch.from_numpy(index)]


def values_on(name: str, outputs: Any, target: Any, classes: int | None, names: list[str] | None) -> tuple[Any, Any]:
    task = get_task(name)
    battery = task.battery(classes) if names is None else task.battery.pick(names, classes)  # type: ignore[attr-defined]
    chosen = Task(**{**{f: getattr(task, f) for f in task.__slots__}, "battery": lambda n, ignore_index=None: battery})
    rows, step = rows_of(chosen, Table(outputs), loader(target, 16), classes)
    return rows, (step, measure(rows, step.task, step.battery, "t"))


@pytest.mark.parametrize(
    "name",
    [
        *("classification", "binary", "multilabel", "regression", "segmentation", "image_quality", "language_modeling"),
        *("clustering", "nominal"),
    ],
)
def test_forms_follow_the_metric_under_resampling(name: str) -> None:
    outputs, target, classes, names = case(name)
    rows, (step, found) = values_on(name, outputs, target, classes, names)
    index = np.random.default_rng(0).integers(0, N, N)
    _, (_, again) = values_on(name, resampled(outputs, index), resampled(target, index), classes, names)
    weights = np.bincount(index, minlength=N).astype(np.float64)[None]
    for metric, value in found.values.items():
        form = item_form(Subject(metric, step.battery[metric], metric, rows, step.task, value, True))
        assert form is not None, metric
        if isinstance(form, ItemMetric):
            assert form.value == pytest.approx(value, abs=1e-5)
            assert form.of_weights(weights)[0] == pytest.approx(again.values[metric], abs=2e-5), metric
            assert form.take(index).value == pytest.approx(again.values[metric], abs=2e-5), metric
        else:
            assert form.mean() == pytest.approx(value, abs=1e-5)
            assert form[index].mean() == pytest.approx(again.values[metric], abs=1e-5), metric


def test_text_metrics_have_forms() -> None:
    texts = [f"word{i % 4} and some more {i}" + " again" * (i % 2) for i in range(12)]
    truth = [f"word{i % 3} and some other {i}" + " twice" * (i % 3) for i in range(12)]
    rows, step = rows_of("text", Listed(texts), [(list(range(12)), truth)])
    found = measure(rows, step.task, step.battery, "t")
    forms = {
        name: item_form(Subject(name, step.battery[name], name, rows, step.task, found.values[name], True))
        for name in ("exact_match", "wer", "cer", "bleu", "chrf", "ter", "edit_distance")
    }
    assert all(form is not None for form in forms.values())
    half = np.array([[1.0] * 6 + [0.0] * 6])
    rows, step = rows_of("text", Listed(texts[:6]), [(list(range(6)), truth[:6])])
    part = measure(rows, step.task, step.battery, "t").values
    for name in ("wer", "bleu"):
        form = forms[name]
        assert isinstance(form, ItemMetric)
        assert form.of_weights(half)[0] == pytest.approx(part[name], abs=1e-5)


OF_ALL = ("map", "map_50", "map_75", "mar_1", "mar_10", "mar_100")
OF_SIZES = tuple(f"{kind}_{size}" for kind in ("map", "mar") for size in ("small", "medium", "large"))


@pytest.mark.parametrize("crowds", [False, True])
def test_average_precision_of_boxes_follows_the_images(crowds: bool) -> None:
    pytest.importorskip("pycocotools")
    truth, output = [], []
    sides = torch.tensor([10.0, 31.0, 33.0, 60.0, 95.0, 97.0, 150.0])[:, None]
    for i in range(12):
        corners = noise(i, (7, 2), 20).abs()
        boxes = torch.cat([corners, corners + sides + noise(100 + i, (7, 2), 3).abs()], 1)
        truth.append({"boxes": boxes, "labels": torch.arange(7) % 2})
        if crowds:
            truth[-1]["iscrowd"] = (torch.arange(7) == i % 7).long()
            truth[-1]["area"] = torch.where(torch.arange(7) % 3 == 0, 900.0, 0.0)
        moved = torch.cat([boxes + noise(200 + i, (7, 4), 1.5), boxes[:3] + 40, boxes[i % 7 :][:1] + 1])
        scores = noise(300 + i, (len(moved),)).sigmoid()
        output.append({"boxes": moved, "scores": scores, "labels": (torch.arange(len(moved)) + (i % 5 == 0)) % 2})

    def values(index: list[int]) -> tuple[Any, Any]:
        data = [(list(range(len(index))), [truth[i] for i in index])]
        rows, step = rows_of("detection", Listed([output[i] for i in index]), data)
        return (rows, step), measure(rows, step.task, step.battery, "t").values

    (rows, step), found = values(list(range(12)))
    index = np.random.default_rng(0).integers(0, 12, 12)
    _, again = values(index.tolist())
    weights = np.bincount(index, minlength=12).astype(np.float64)[None]
    for name in OF_ALL + OF_SIZES:
        form = item_form(Subject(name, step.battery["map"], "map", rows, step.task, found[name], True))
        assert isinstance(form, ItemMetric)
        assert form.value == pytest.approx(found[name], abs=1e-6)
        assert form.of_weights(weights)[0] == pytest.approx(again[name], abs=1e-6)
        assert form.take(index).value == pytest.approx(again[name], abs=1e-6)


def test_a_form_that_is_another_quantity_is_left_out() -> None:
    outputs, target, classes, _ = case("classification")
    rows, (step, found) = values_on("classification", outputs, target, classes, ["accuracy"])
    wrong = found.values["accuracy"] + 0.1
    assert item_form(Subject("accuracy", step.battery["accuracy"], "accuracy", rows, step.task, wrong, True)) is None


def test_slopes_stand_for_a_large_auroc() -> None:
    scores, labels = noise(1, (400, 2)).numpy(), (np.arange(400) % 2).astype(bool)
    scores[labels, 0] += 1
    exact = mean_auroc("auroc", scores[:, :1], labels[:, None])
    assert exact is not None
    weights = np.random.default_rng(0).multinomial(400, np.full(400, 1 / 400), size=300).astype(np.float64)
    from fusion_eval.stats.probability_metrics import binary_auroc

    curve = binary_auroc(scores[:, 0], labels.astype(int))
    assert curve.slopes is not None
    linear = linear_metric("auroc", curve.value, curve.slopes)
    assert exact.value == pytest.approx(curve.value, abs=1e-6)
    assert exact.of_weights(weights) == pytest.approx(curve.of_weights(weights), abs=1e-6)
    assert linear.of_weights(weights).std() == pytest.approx(exact.of_weights(weights).std(), rel=0.05)


def test_weights_fold_into_any_form() -> None:
    scores = np.array([1.0, 0.0, 1.0])
    form = weighted_form("m", scores, torch.tensor([1.0, 2.0, 1.0]), True)
    assert form is not None
    assert form.value == pytest.approx(0.5)
    assert form.take(np.array([1, 1])).value == 0.0
    assert weighted_form("m", None, torch.ones(3), True) is None
