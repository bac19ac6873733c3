"""Image classification: layouts, processors, heads, metrics, models per task, set-up once."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

from fusion_eval import Task, instantiate
from fusion_eval.errors import ConfigError, DataError, EvaluationError
from fusion_eval.report.values import Value
from fusion_eval.task.heads import LinearHead
from fusion_eval.task.registry import register_task
from fusion_eval.taskpool import ImageClassificationTaskPool

OPENED: list[str] = []


def data(items: int = 50, classes: int = 4) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(items, 3, generator=generator), torch.arange(items) % classes)


def opened(name: str) -> Dataset[Any]:
    OPENED.append(name)
    return data()


class Rows(Dataset[dict[str, Any]]):
    def __init__(self, key: str = "image") -> None:
        self.key, self.data = key, data()

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = self.data[index]
        return {self.key: x, "label": int(y), "name": f"picture {index}"}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        return iter(data())


class Wrapped(nn.Module):
    """Returns its logits in one of the ways that libraries do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.linear = way, nn.Linear(3, 4)

    def forward(self, x: Tensor | None = None, pixel_values: Tensor | None = None) -> Any:
        logits = self.linear(x if pixel_values is None else pixel_values)
        return {
            "tensor": logits,
            "object": SimpleNamespace(logits=logits),
            "dict": {"logits": logits},
            "segmentation": {"out": logits},
            "tuple": (logits, None),
            "nothing": {"score": logits},
        }[self.way]


def pool(**kwargs: Any) -> ImageClassificationTaskPool:
    return ImageClassificationTaskPool(
        **{"test_datasets": {"t": data()}, "progress": False, "dataloader_kwargs": {"batch_size": 16}, **kwargs}
    )


def accuracy(model: nn.Module) -> float:
    x, y = data().tensors
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


@pytest.mark.parametrize("way", ["tensor", "object", "dict", "segmentation", "tuple"])
def test_outputs_of_all_kinds(way: str) -> None:
    found = pool().evaluate(Wrapped(way))
    assert found["t"]["accuracy"] == pytest.approx(accuracy(Wrapped("tensor")))


def test_an_output_without_logits_is_named() -> None:
    with pytest.raises(
        EvaluationError, match=r"model 'model', the model's output: \['score'\]; expected a tensor, or one of logits"
    ):
        pool().evaluate(Wrapped("nothing"))


@pytest.mark.parametrize("dataset", [Rows(), Rows("pixel_values"), Stream()])
def test_layouts_give_the_same(dataset: Dataset[Any]) -> None:
    found = pool(test_datasets={"t": dataset}).evaluate(Wrapped("tensor"))
    assert found["t"]["accuracy"] == pytest.approx(accuracy(Wrapped("tensor")))


def test_processors_plain_and_of_transformers() -> None:
    class Processor:
        def __call__(self, images: Tensor, return_tensors: str) -> Mapping[str, Tensor]:
            assert return_tensors == "pt"
            return {"pixel_values": images[None] * 2}

    x, y = data().tensors
    model = Wrapped("tensor")
    with torch.no_grad():
        expected = (model(x * 2).argmax(1) == y).float().mean().item()
    for processor in (Processor(), lambda image: image * 2):
        for dataset in (data(), Rows()):
            found = pool(test_datasets={"t": dataset}, processor=processor).evaluate(model)
            assert found["t"]["accuracy"] == pytest.approx(expected)


def test_a_head_per_task() -> None:
    weights = {name: torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("ab")}
    heads = {name: LinearHead(weight, name=name) for name, weight in weights.items()}
    x, y = data().tensors
    datasets = {"a": data(), "b": data()}
    for found in (
        pool(test_datasets=datasets, heads=heads).evaluate(nn.Identity()),
        pool(test_datasets=datasets, heads=SimpleNamespace(head=heads.get)).evaluate(nn.Identity()),
    ):
        for name, weight in weights.items():
            assert found[name]["accuracy"] == pytest.approx(((x @ weight.T).argmax(1) == y).float().mean().item())
    own = pool(test_datasets=datasets, heads=heads)
    own.use_heads(lambda task: None)  # the pool's own heads win
    assert own.head("a") is heads["a"]


def test_labels_outside_a_head_are_found_when_the_data_are_opened() -> None:
    dataset = data(classes=5)
    dataset.targets = dataset.tensors[1].tolist()  # type: ignore[attr-defined]
    made = pool(test_datasets={"t": dataset}, heads={"t": LinearHead(torch.ones(4, 3), name="t")})
    with pytest.raises(
        DataError,
        match=r"taskpool.test_datasets.t: labels from 0 to 4; expected labels from 0 to 3, the head's 4 classes",
    ):
        made.setup()


def test_data_sets_are_opened_once_for_all_models() -> None:
    OPENED.clear()
    node = {"_target_": f"{__name__}.opened"}
    made = instantiate(
        {
            "_target_": "fusion_eval.taskpool.ImageClassificationTaskPool",
            "test_datasets": {"a": {**node, "name": "a"}, "b": {**node, "name": "b"}},
            "progress": False,
        }
    )
    assert OPENED == []
    for _ in range(3):
        made.evaluate(Wrapped("tensor"))
    assert OPENED == ["a", "b"]


def test_all_metrics_equal_torchmetrics() -> None:
    model = Wrapped("tensor")
    x, y = data().tensors
    with torch.no_grad():
        probs = model(x).softmax(1)
    found = pool(metrics="all").results(model).tasks[0]
    assert list(found.metrics) == ["accuracy", "loss", "f1", "precision", "recall", "auroc", "ece"]
    assert found.metrics["f1"].value == pytest.approx(float(MulticlassF1Score(4, average="macro")(probs.argmax(1), y)))
    assert found.metrics["auroc"].value == pytest.approx(float(MulticlassAUROC(4)(probs, y)), abs=1e-6)
    assert found.metrics["loss"].higher_is_better is False
    assert found.metrics["ece"].higher_is_better is False


def test_metrics_by_target() -> None:
    metric = {"_target_": "torchmetrics.classification.MulticlassF1Score", "num_classes": 4, "average": "weighted"}
    found = pool(metrics={"weighted_f1": metric}).evaluate(Wrapped("tensor"))
    assert list(found["t"]) == ["weighted_f1"]


def test_a_task_of_the_user_s_own() -> None:
    def predict(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        probs = model(-x).softmax(-1)
        return probs.argmax(-1), probs

    register_task(
        "negated",
        Task(battery=lambda num_classes, ignore_index=None: {"f1": MulticlassF1Score(num_classes)}, predict_fn=predict),
        overwrite=True,
    )
    x, y = data().tensors
    model = Wrapped("tensor")
    with torch.no_grad():
        logits = model(-x)
    found = pool(task="negated", metrics=["accuracy", "loss"]).evaluate(model)["t"]
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == y).float().mean().item())
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(logits, y).item(), rel=1e-5)


def test_a_model_per_task() -> None:
    models = {"a": Wrapped("tensor"), "b": nn.Linear(3, 4)}
    made = pool(test_datasets={"a": data(), "b": data()})
    found = made.evaluate(models)
    for name, model in models.items():
        assert found[name]["accuracy"] == pytest.approx(accuracy(model))


def test_values_have_wilson_s_interval_and_their_error() -> None:
    value = pool().results(Wrapped("tensor")).tasks[0].metrics["accuracy"]
    assert isinstance(value, Value)
    assert value.n == 50
    assert value.stderr == pytest.approx((value.value * (1 - value.value) / 49) ** 0.5)
    from scipy.stats import binomtest

    expected = binomtest(round(value.value * 50), 50).proportion_ci(method="wilson")
    assert value.interval == pytest.approx((expected.low, expected.high))


def test_fast_dev_run_takes_one_batch_and_says_so() -> None:
    task = pool(fast_dev_run=True).results(Wrapped("tensor")).tasks[0]
    assert (task.n, task.partial) == (16, True)


def test_faults_are_all_told() -> None:
    faults = pool(test_datasets={}, metrics=["acuracy"], dataloader_kwargs={"shuffle": True}).faults()
    assert len(faults) == 3


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"taskpool.limt: ImageClassificationTaskPool takes no 'limt'\. Did you mean 'limit'"
    ):
        pool(limt=3)


def test_a_yaml_round_trip(tmp_path: Any) -> None:
    node = {"_target_": f"{__name__}.opened", "name": "a"}
    made = ImageClassificationTaskPool({"a": node}, dataloader_kwargs={"batch_size": 7}, limit=9, progress=False)
    made.to_yaml(tmp_path / "pool.yaml")
    again = ImageClassificationTaskPool.from_yaml(tmp_path / "pool.yaml")
    assert again.config == made.config
    assert again.dataloader_kwargs == {"batch_size": 7}
    assert again.evaluate(Wrapped("tensor")) == made.evaluate(Wrapped("tensor"))
