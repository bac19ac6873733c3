"""Models compared: the peer's numbers, its defects answered right, and every bad input refused clearly."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from xarray.testing import assert_allclose

from fusion_eval.errors import ConfigError, DataError, EvaluationError
from fusion_eval.program.compare.models import compare
from fusion_eval.stats.result import ComparisonResult
from fusion_eval.task import Task, classification_battery, register_task, registry
from tests.task.tables import Listed, Table, loader, noise

FAST = {"resamples": 200}
TARGET = torch.arange(60) % 3


def model(seed: int, signal: float = 1.0) -> Table:
    return Table(nn.functional.one_hot(TARGET, 3) * signal + noise(seed, (60, 3)))


ONE = {"a": [model(0), model(1)], "b": [model(2, 0.2), model(3, 0.2)]}
DATA = loader(TARGET, 16)


def three(**changes: Any) -> ComparisonResult:
    return compare(**{"methods": ONE, "data": DATA, "num_classes": 3, **FAST, **changes})


@pytest.fixture(scope="module")
def digits(assets_dir: Path) -> tuple[dict[str, list[nn.Module]], Any, dict[str, Any]]:
    arrays = np.load(assets_dir / "task" / "digits.npz")
    methods = {name: [Table(torch.from_numpy(logits)) for logits in arrays[name]] for name in ("linear", "mlp")}
    document = json.loads((assets_dir / "task" / "digits.json").read_text())
    return methods, loader(torch.from_numpy(arrays["y"].astype(np.int64)), 64), document


def test_values_equal_the_peers(digits: Any) -> None:
    methods, data, document = digits
    found = compare(methods, data, num_classes=10, **FAST)
    for method, metrics in document["values"].items():
        for metric, values in metrics.items():
            assert found.data[metric].sel({"method": method}).values == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize("test", ["wilcoxon", "ttest_rel", "welch", "ttest_ind", "mannwhitney"])
def test_comparisons_equal_the_peers(shared_dir: Path, test: str) -> None:
    run = json.loads((shared_dir / "peers/mushin_run.json").read_text())["digits"]["by_test"][test]
    with np.load(shared_dir / "peers/mushin_run_logits.npz") as arrays:
        methods = {name: [Table(torch.from_numpy(x)) for x in arrays[name]] for name in ("linear", "mlp")}
        data = loader(torch.from_numpy(arrays["y"]), 64)
    found = compare(methods, data, num_classes=10, test=test, metrics=["accuracy", "f1", "ece"], **FAST)
    for expected in run["comparisons"]:
        ours = found.comparison(expected["metric"], "linear", "mlp")
        if ours is not None:
            names = ("mean_diff", "p_value", "p_corrected", "effect_size")
            assert {n: getattr(ours, n) for n in names} == pytest.approx({n: expected[n] for n in names}, rel=1e-4)


def test_single_checkpoints_are_compared_by_items() -> None:
    found = three(methods={"a": ONE["a"][0], "b": [ONE["b"][0]]})
    by_name = {c.metric: c for c in found.comparisons}
    assert by_name["accuracy"].claim == "these checkpoints"
    assert by_name["accuracy"].verdict == "better"
    assert by_name["accuracy"].n_items == 60
    assert by_name["auroc"].test == "bootstrap"
    assert found.data["accuracy_item"].dims == ("method", "seed", "item")
    assert not any("identical" in text for text in found.warnings)


def test_several_seeds_support_a_claim_about_the_recipe() -> None:
    found = three()
    assert found.comparisons[0].claim == "the recipe"
    assert found.data.sizes["seed"] == 2
    assert three(seeds=[11, 12]).data["seed"].values.tolist() == [11, 12]


def test_a_repeated_model_is_compared_by_items() -> None:
    same = {"a": [ONE["a"][0]] * 3, "b": [ONE["b"][0]] * 3}
    found = three(methods=same, metrics=["accuracy"]).comparisons[0]
    assert found.claim == "these checkpoints"
    assert np.isfinite(found.p_value)
    assert any("identical over all 3 runs" in note for note in found.notes)


def test_one_method_alone_has_values_and_intervals() -> None:
    found = three(methods={"cnn": ONE["a"]})
    assert found.comparisons == ()
    assert set(found.summary()["metric"]) == {"accuracy", "f1", "precision", "recall", "auroc", "ece"}
    assert found.summary()["ci_low"].notna().all()


def test_seeds_may_come_as_a_module_list_or_load_when_needed() -> None:
    loads: list[int] = []

    def load(seed: int) -> nn.Module:
        loads.append(seed)
        return ONE["a"][seed]

    direct = three(methods={"a": ONE["a"]})
    lazy = three(methods={"a": [partial(load, 0), partial(load, 1)]})
    assert loads == [0, 1]
    assert three(methods={"a": nn.ModuleList(ONE["a"])}).data.equals(direct.data)
    assert lazy.data.equals(direct.data)


def test_a_bare_sequential_is_one_model_not_a_list_of_layers() -> None:
    found = three(methods={"a": nn.Sequential(ONE["a"][0], nn.Softshrink(0.1))})
    assert found.data.sizes["seed"] == 1


def test_models_are_left_as_they_were_and_metrics_without_state() -> None:
    one = [ONE["a"][0].train()]
    battery = classification_battery(3)
    three(methods={"a": one}, metrics=battery)
    assert one[0].training
    assert battery["auroc"].preds == []
    assert not battery["accuracy"].update_called


# the contract's samples


def test_sample_custom_metrics() -> None:
    found = compare(
        methods={"cnn": ONE["a"]},
        data=DATA,
        task="classification",
        metrics={
            "accuracy": MulticlassAccuracy(num_classes=3, average="micro"),
            "f1_macro": MulticlassF1Score(num_classes=3, average="macro"),
            "f1_weighted": MulticlassF1Score(num_classes=3, average="weighted"),
        },
        **FAST,
    )
    assert set(found.metrics) == {"accuracy", "f1_macro", "f1_weighted"}
    assert {"accuracy", "f1_macro", "f1_weighted"} <= set(found.data.data_vars)


def test_sample_prob_metrics() -> None:
    found = compare(
        methods={"cnn": ONE["a"]},
        data=DATA,
        task="classification",
        metrics={
            "accuracy": MulticlassAccuracy(num_classes=3, average="micro"),
            "auroc": MulticlassAUROC(num_classes=3),
        },
        prob_metrics=frozenset({"auroc"}),
        num_classes=3,
        **FAST,
    )
    assert set(found.metrics) == {"accuracy", "auroc"}


def test_sample_battery_without_a_metric() -> None:
    battery = classification_battery(num_classes=3)
    del battery["ece"]
    found = compare(methods=ONE, data=DATA, metrics=battery, **FAST)
    assert found.metrics == ("accuracy", "f1", "precision", "recall", "auroc")
    assert found.data["auroc"].values == pytest.approx(three().data["auroc"].values)


def test_sample_reusable_task() -> None:
    acc_only = Task(
        battery=lambda num_classes, ignore_index=None: {
            "accuracy": MulticlassAccuracy(num_classes=num_classes, average="micro"),
        },
        predict_fn=lambda model, x: (model(x).argmax(-1), model(x).softmax(-1)),
        prob_metrics=frozenset(),
        description="accuracy-only classification",
    )
    inline = compare(methods=ONE, data=DATA, task=acc_only, num_classes=3, **FAST)
    register_task("acc_only", acc_only)
    try:
        named = compare(methods=ONE, data=DATA, task="acc_only", num_classes=3, **FAST)
    finally:
        registry._REGISTERED.clear()
    assert named.data.equals(inline.data)


def test_sample_update_function() -> None:
    def my_update(battery: Any, preds: Tensor, probs: Any, target: Tensor) -> None:
        for metric in battery.values():
            metric.update(preds, target)

    task = Task(
        battery=lambda num_classes, ignore_index=None: {"acc": MulticlassAccuracy(3, average="micro")},
        predict_fn=lambda model, x: (model(x).argmax(-1), None),
        update_fn=my_update,
        requires_num_classes=False,
    )
    assert compare(ONE, DATA, task, **FAST).data["acc"].values == pytest.approx(three().data["accuracy"].values)


def test_sample_segmentation_models_that_return_dictionaries() -> None:
    target = torch.randint(0, 4, (6, 8, 8), generator=torch.Generator().manual_seed(0))
    target[0, :2] = 255

    class Fcn(Table):
        def forward(self, ids: Tensor) -> Any:
            return {"out": super().forward(ids)}

    def dict_predict(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(x)["out"]
        return logits.argmax(1), logits.softmax(1)

    options: dict[str, Any] = {"task": "segmentation", "num_classes": 4, "ignore_index": 255, **FAST}
    models = {"fcn": [Fcn(noise(s, (6, 4, 8, 8))) for s in range(2)]}
    custom = compare(models, data=loader(target, 2), predict_fn=dict_predict, **options)
    assert_allclose(custom.data, compare(models, data=loader(target, 2), **options).data)


def test_sample_regression_needs_no_classes() -> None:
    y = noise(9, (50,))
    found = compare(
        {"m": Table(y + noise(1, (50,))), "n": Table(y + noise(2, (50,), 0.5))}, loader(y), "regression", **FAST
    )
    assert found.comparison("mse", "m", "n").verdict == "worse"
    assert found.comparison("spearman", "m", "n").mean_diff < 0


def test_several_outputs_are_counted_from_the_targets() -> None:
    y = noise(9, (50, 3))
    found = compare({"m": Table(y + noise(1, (50, 3)))}, loader(y), task="regression", **FAST)
    assert float(found.data["pearson"][0, 0]) == pytest.approx(
        np.mean([np.corrcoef((y + noise(1, (50, 3)))[:, d], y[:, d])[0, 1] for d in range(3)]), abs=1e-5
    )


def test_metrics_and_predict_functions_as_nodes() -> None:
    found = three(
        metrics={
            "acc": {"_target_": "torchmetrics.classification.MulticlassAccuracy", "num_classes": 3, "average": "micro"}
        },
        predict_fn={"_target_": "fusion_eval.task.ArgmaxPredict"},
    )
    assert found.data["acc"].values == pytest.approx(three().data["accuracy"].values)
    assert_allclose(three(predict_fn="tests.program.compare.test_models.twice").data, three().data)


def twice(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(x)
    return logits.argmax(-1), logits.softmax(-1)


# items, weights, clusters


def test_weights_of_items_weigh_them() -> None:
    weight = torch.rand(60, generator=torch.Generator().manual_seed(0))
    data = [(torch.arange(60), TARGET, weight)]
    found = three(data=data, fields=["input", "target", "weight"], metrics=["accuracy", "f1", "mcc"])
    right = (ONE["a"][0].table.argmax(1) == TARGET).double()
    assert float(found.data["accuracy"][0, 0]) == pytest.approx(float((right * weight).sum() / weight.sum()))
    doubled = [(torch.arange(60).repeat(2), TARGET.repeat(2))]
    ones = [(torch.arange(60), TARGET, torch.full((60,), 2.0))]
    assert three(data=ones, fields=["input", "target", "weight"], metrics=["f1"]).data["f1"].values == pytest.approx(
        three(data=doubled, metrics=["f1"]).data["f1"].values
    )


def test_negative_weights_are_refused() -> None:
    data = [(torch.arange(60), TARGET, -torch.ones(60))]
    with pytest.raises(DataError, match=r"the batches' weights.*one finite weight >= 0 per item"):
        three(data=data, fields=["input", "target", "weight"])


def test_clusters_come_as_an_argument_or_in_the_batches() -> None:
    labels = (torch.arange(60) // 2).tolist()
    given = three(clusters=labels, metrics=["accuracy"]).comparisons[0]
    data = [(torch.arange(60), TARGET, torch.tensor(labels))]
    found = three(data=data, fields=["input", "target", "cluster"], metrics=["accuracy"]).comparisons[0]
    assert given.n_clusters == found.n_clusters == 30
    assert given.p_value == found.p_value
    with pytest.raises(ConfigError, match="2 labels for 60 items"):
        three(clusters=[0, 1])


def test_boxes_are_compared_by_images() -> None:
    truth = [
        {"boxes": torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 40]]), "labels": torch.tensor([0, 1])} for _ in range(8)
    ]

    def detector(seed: int, scale: float) -> nn.Module:
        outputs = [
            {"boxes": t["boxes"] + noise(seed + i, (2, 4), scale), "scores": torch.rand(2), "labels": t["labels"]}
            for i, t in enumerate(truth)
        ]
        return Listed(outputs)

    data = [(list(range(8)), truth)]
    found = compare({"fine": detector(0, 0.5), "rough": detector(50, 3.0)}, data, task="detection", **FAST)
    assert found.comparison("iou", "fine", "rough").verdict == "better"
    assert found.comparison("map", "fine", "rough").verdict == "better"
    assert found.comparison("mar_100", "fine", "rough").verdict == "better"
    assert found.comparison("mar_small", "fine", "rough").verdict == "better"


def test_a_metric_without_a_form_by_items_is_reported_but_not_tested() -> None:
    from torchmetrics.wrappers import BootStrapper

    torch.manual_seed(0)
    several = BootStrapper(MulticlassAccuracy(3), num_bootstraps=3)
    one = {name: Table(noise(seed, (60, 3))) for seed, name in enumerate("ab")}
    found = three(methods=one, metrics={"accuracy": MulticlassAccuracy(3), "several": several})
    assert {c.metric for c in found.comparisons} == {"accuracy"}
    assert any(text.startswith("mean: one value per method") for text in found.warnings)
    assert "mean" in set(found.summary()["metric"])
    for text in (found.to_markdown(), found.to_latex(), found.to_html()):
        assert "none: no form by items" in text


def test_queries_are_the_items_of_retrieval() -> None:
    relevance = (torch.rand(80, generator=torch.Generator().manual_seed(0)) < 0.4).long()
    data = [(torch.arange(80), (relevance, torch.arange(80) // 8))]
    found = compare(
        {"a": Table(relevance + noise(0, (80,), 0.5)), "b": Table(noise(1, (80,)))}, data, "retrieval", **FAST
    )
    assert found.comparison("retrieval_map", "a", "b").n_items == 10
    assert found.comparison("retrieval_map", "a", "b").verdict == "better"


# what is kept


def test_results_are_saved_loaded_and_exported(tmp_path: Path) -> None:
    found = three(receipt={"note": "mine"})
    loaded = ComparisonResult.load(found.save(tmp_path / "result.json"))
    assert str(loaded) == str(found)
    assert loaded.to_csv() == found.to_csv()
    assert loaded.data.equals(found.data)
    for text in (found.to_markdown(), found.to_latex(), found.to_html(), found.to_csv()):
        assert "accuracy" in text
    receipt = loaded.receipt
    assert receipt["note"] == "mine"
    assert receipt["data"]["items"] == 60
    assert "torchmetrics" in receipt["versions"]
    assert receipt["metrics"]["accuracy"].startswith("torchmetrics.classification")
    assert receipt["models"]["a"][0] != receipt["models"]["a"][1]


# the peer's defects


def test_an_absent_class_is_left_out_of_auroc_with_a_warning() -> None:
    found = three(methods={"a": Table(noise(0, (60, 4)))}, num_classes=4)
    assert any("auroc: mean over 3 of 4 classes" in text for text in found.warnings)


def test_a_metric_that_one_model_has_not_is_left_out_for_all() -> None:
    truth = [{"boxes": torch.tensor([[0.0, 0, 10, 10]]), "labels": torch.tensor([0])} for _ in range(4)]
    good = [{**t, "scores": torch.ones(1)} for t in truth]
    none = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "scores": torch.zeros(0)} for _ in truth]
    found = compare({"good": Listed(good), "none": Listed(none)}, [(list(range(4)), truth)], "detection", **FAST)
    assert "iou" not in found.metrics
    assert any(text.startswith("iou: left out, since it has no value for none") for text in found.warnings)


class Changing:
    """Other items in every pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        order = torch.randperm(60, generator=torch.Generator().manual_seed(self.passes))
        return iter([(order, TARGET[order])])


def test_items_that_change_from_pass_to_pass_are_refused() -> None:
    with pytest.raises(DataError, match=r"other items, or another order"):
        three(data=Changing())


def test_shuffling_loaders_are_read_in_order() -> None:
    shuffled = DataLoader(TensorDataset(torch.arange(60), TARGET), 16, shuffle=True)
    assert three(data=shuffled).data.equals(three().data)


# bad input

NAN = nn.Sequential(ONE["a"][0], nn.Threshold(1e9, float("nan")))

BAD = {
    "unknown test": ({"test": "anova"}, r"test: 'anova'.*one of"),
    "unknown correction": ({"correction": "sidak"}, r"correction: 'sidak'.*holm"),
    "unknown task": ({"task": "clasification"}, r"no task 'clasification'.*Did you mean 'classification'"),
    "unknown argument": ({"tset": "welch"}, r"unknown argument tset.*Did you mean 'test'"),
    "no num_classes": ({"num_classes": None}, r"num_classes: not given.*'classification'"),
    "generator": ({"data": iter(DATA)}, r"can be read only once"),
    "no methods": ({"methods": {}}, r"methods: no methods"),
    "methods as a list": ({"methods": [ONE["a"]]}, r"methods: a list; expected models by method name"),
    "method without seeds": ({"methods": {"a": []}}, r"methods, 'a': an empty list"),
    "ragged seeds": ({"methods": {"a": ONE["a"], "b": ONE["b"][:1]}}, r"'a' has 2, 'b' has 1"),
    "not a model": ({"methods": {"a": [3]}}, r"methods, 'a', run 0: a int; expected a torch module"),
    "a path": ({"methods": {"a": "model.pt"}}, r"methods, 'a': a str"),
    "names that are numbers": ({"methods": {0: ONE["a"]}}, r"the name 0.*Use str\(name\)"),
    "empty data": ({"data": []}, r"data: no batches"),
    "three parts": ({"data": [(torch.arange(4), TARGET[:4], TARGET[:4])]}, r"a batch of 3 parts.*fields"),
    "too few classes": ({"num_classes": 2}, r"data, first batch: labels \[2\] for 2 classes"),
    "prob_metrics unknown": ({"metrics": ["accuracy"], "prob_metrics": {"auroc"}}, r"prob_metrics: no metric auroc"),
    "unknown metric": ({"metrics": ["acuracy"]}, r"no metric 'acuracy'.*Did you mean 'accuracy'"),
    "not a metric": ({"metrics": {"x": 3}}, r"metrics\.x: a int; expected a torchmetrics\.Metric"),
    "metric node that cannot be built": (
        {"metrics": {"x": {"_target_": "torchmetrics.classification.NoSuch"}}},
        r"NoSuch",
    ),
    "no metrics": ({"metrics": {}}, r"metrics: none"),
    "device": ({"device": "gpu9"}, r"device: 'gpu9'"),
    "seeds": ({"seeds": [1]}, r"seeds: 1 names; expected 2"),
    "alpha": ({"alpha": 2}, r"alpha: 2"),
    "predict_fn": ({"predict_fn": 3}, r"predict_fn: a int"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_arguments_are_refused_before_a_model_runs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Table, ids: Tensor) -> Tensor:
        raise AssertionError("a forward pass")

    changes, message = BAD[case]
    monkeypatch.setattr(Table, "forward", never)
    with pytest.raises(ConfigError, match=message):
        three(**changes)


def test_all_faults_come_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        three(methods={"a": [], "b": [3]}, test="anova", device="gpu9", data=[])
    assert len(caught.value.faults) >= 5


RUN_TIME = {
    "not finite": (
        {"methods": {"a": NAN}},
        EvaluationError,
        r"method 'a', task 'classification': 16 of 16 outputs are NaN",
    ),
    "one thing": (
        {"predict_fn": lambda m, x: m(x)},
        EvaluationError,
        r"method 'a', run 0, .*predict_fn: it returned a Tensor",
    ),
    "a matrix": (
        {"metrics": {"cm": MulticlassConfusionMatrix(3)}},
        EvaluationError,
        r"metric 'cm': a result of shape \(3, 3\)",
    ),
    "hard labels for auroc": (
        {"metrics": {"auroc": MulticlassAUROC(3)}, "prob_metrics": []},
        EvaluationError,
        r"add 'auroc' to prob_metrics",
    ),
    "a loader of something else": ({"methods": {"a": lambda: 3}}, ConfigError, r"its function gives a int"),
    "unknown reference": ({"reference": "zzz"}, ConfigError, r"reference: 'zzz'"),
    "other classes": (
        {"num_classes": 3, "methods": {"a": Table(noise(0, (60, 5)))}},
        EvaluationError,
        r"5 logits per item for 3 classes",
    ),
}


@pytest.mark.parametrize("case", list(RUN_TIME))
def test_what_only_a_model_shows_is_told_clearly(case: str) -> None:
    changes, kind, message = RUN_TIME[case]
    with pytest.raises(kind, match=message):
        three(**changes)


def test_a_metric_that_cannot_take_the_outputs_is_found_after_one_batch() -> None:
    calls: list[int] = []

    def predict(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(x))
        return twice(model, x)

    with pytest.raises(EvaluationError, match="metric 'auroc'"):
        three(metrics={"auroc": MulticlassAUROC(3)}, prob_metrics=[], predict_fn=predict)
    assert calls == [16]


def test_auroc_finds_its_probabilities_unasked() -> None:
    found = three(metrics={"area": MulticlassAUROC(3)})
    assert found.data["area"].values == pytest.approx(three().data["auroc"].values, abs=1e-6)


def test_low_precision_models_are_compared() -> None:
    data = [(torch.randn(16, 8, dtype=torch.bfloat16), TARGET[:16])]
    found = three(methods={"a": [nn.Linear(8, 3).bfloat16()] * 2}, data=data)
    assert 0 <= float(found.data["accuracy"][0, 0]) <= 1


def test_ignored_classes_are_ignored() -> None:
    kept = TARGET != 0
    found = three(ignore_index=0, metrics=["accuracy"])
    right = (ONE["a"][0].table.argmax(1) == TARGET)[kept]
    assert float(found.data["accuracy"][0, 0]) == pytest.approx(float(right.float().mean()))


def test_a_broken_method_may_be_dropped() -> None:
    found = three(methods={"broken": [NAN, NAN], **ONE}, on_error="drop")
    assert found.methods == ("a", "b")
    assert found.warnings[0].startswith("method 'broken' is left out: method 'broken', run 0, task 'classification'")
    with pytest.raises(EvaluationError, match="NaN"):
        three(methods={"broken": NAN}, on_error="drop")
    with pytest.raises(ConfigError, match="on_error: 'skip'"):
        three(on_error="skip")
