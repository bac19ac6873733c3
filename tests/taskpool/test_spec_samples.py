"""Every sample of the task pool contract, as printed with the package's name changed (tests/assets/spec)."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fusion_eval
from fusion_eval import instantiate
from fusion_eval.compose import register
from fusion_eval.config_path import config_dir
from fusion_eval.taskpool.base_pool import lift

IMAGES, CLASSES = (3, 8, 8), 10


class Pictures(Dataset[tuple[Tensor, int]]):
    """Stands in for torchvision's data sets."""

    def __init__(self, root: str, train: bool, download: bool) -> None:
        assert (root, train, download) == ("./data", False, True)
        self.images = torch.randn(40, *IMAGES, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], index % CLASSES


class Sentences(Dataset[dict[str, Tensor]]):
    """Stands in for GLUE, tokenised."""

    def __init__(self, path: str, name: str, split: str) -> None:
        assert (path, split) == ("glue", {"sst2": "validation", "mnli": "validation_matched"}[name])
        self.classes = {"sst2": 2, "mnli": 3}[name]

    def __len__(self) -> int:
        return 70

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        return {
            "input_ids": ids,
            "attention_mask": torch.ones(12, dtype=torch.int64),
            "labels": torch.tensor(index % self.classes),
        }


class Classifier(nn.Module):
    """Returns an object with logits, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return types.SimpleNamespace(logits=self.out(self.embed(input_ids).mean(1)))


def image_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, CLASSES)).train()


def sample(assets_dir: Path, *names: str) -> str:
    return "\n".join((assets_dir / "spec" / name).read_text() for name in names)


def module_of(monkeypatch: pytest.MonkeyPatch, name: str, code: str, **names: Any) -> types.ModuleType:
    """A module `fusion_eval.taskpool.<name>` with the code of a sample, as if the user had created the file."""
    module = types.ModuleType(f"fusion_eval.taskpool.{name}")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, f"{name}.py", "exec", dont_inherit=True), vars(module))
    return module


@pytest.fixture
def my_custom(monkeypatch: pytest.MonkeyPatch, assets_dir: Path) -> type:
    """`fusion_eval.taskpool.MyCustomTaskPool` of the steps 1 and 2."""
    datasets = types.SimpleNamespace(CIFAR10=Pictures, MNIST=Pictures)
    stub = types.ModuleType("torchvision")
    stub.datasets = datasets  # type: ignore[attr-defined]
    nested = types.ModuleType("torchvision.datasets")
    vars(nested).update(vars(datasets))
    monkeypatch.setitem(sys.modules, "torchvision", stub)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", nested)
    code = sample(assets_dir, "step1.py.txt", "minimal.py.txt")
    module = module_of(monkeypatch, "my_custom", code, instantiate=instantiate)
    monkeypatch.setattr(fusion_eval.taskpool, "MyCustomTaskPool", module.MyCustomTaskPool, raising=False)
    return module.MyCustomTaskPool


def test_steps_1_and_2_with_the_simple_config(my_custom: type, assets_dir: Path, tmp_path: Path) -> None:
    config = OmegaConf.load(assets_dir / "spec" / "my_custom_task.yaml")
    pool = instantiate(config)
    assert type(pool) is my_custom
    model = image_model()
    report = pool.evaluate(model)
    pictures = Pictures("./data", False, True)
    logits = model.eval()(pictures.images)
    accuracy = (logits.argmax(1) == torch.arange(40) % CLASSES).float().mean().item()
    assert set(report) == {"dataset_a", "dataset_b", "average"}
    assert report["dataset_a"]["accuracy"] == pytest.approx(accuracy)
    assert report["average"]["loss"] == pytest.approx(report["dataset_b"]["loss"])

    pool.to_yaml(tmp_path / "pool.yaml")
    assert OmegaConf.load(tmp_path / "pool.yaml").test_datasets == config.test_datasets
    again = my_custom.from_yaml(tmp_path / "pool.yaml")
    assert again.evaluate(model) == report
    assert again.config == pool.config


def test_a_sample_s_report_becomes_a_typed_result(my_custom: type, assets_dir: Path) -> None:
    pool = instantiate(OmegaConf.load(assets_dir / "spec" / "my_custom_task.yaml"))
    model = image_model()
    result = pool.results(model, "net", "merged")
    assert [task.name for task in result.tasks] == ["dataset_a", "dataset_b"]
    assert result.average()["accuracy"].value == pytest.approx(pool.evaluate(model)["average"]["accuracy"])
    assert result.tasks[0].metrics["loss"].higher_is_better is False
    assert pool.results(model, tasks=["dataset_b"]).tasks == result.tasks[1:]


def test_abstract_evaluate_must_be_written() -> None:
    class Incomplete(fusion_eval.BaseTaskPool):
        pass

    with pytest.raises(TypeError, match="evaluate"):
        Incomplete()


def test_the_real_example(monkeypatch: pytest.MonkeyPatch, assets_dir: Path) -> None:
    code = sample(assets_dir, "real.py.txt")
    module = module_of(monkeypatch, "real", code, DictConfig=DictConfig, Dict=dict, Any=Any, nn=nn)

    class Completed(module.ImageClassificationTaskPool):  # type: ignore[name-defined, misc]
        test_dataloaders: Mapping[str, Any] = {"a": [1], "b": [2, 3]}

        def _evaluate(self, model: nn.Module, loader: list[int], name: str) -> dict[str, float]:
            assert not model.training
            return {"accuracy": float(sum(loader))}

        def _compute_average(self, report: dict[str, Any]) -> dict[str, float]:
            return {"accuracy": sum(entry["accuracy"] for entry in report.values()) / len(report)}

    pool = Completed({"a": 1}, processor="p", dataloader_kwargs={"batch_size": 2})
    assert (pool.test_datasets, pool.processor, pool.dataloader_kwargs) == ({"a": 1}, "p", {"batch_size": 2})
    assert pool.evaluate(image_model())["average"] == {"accuracy": 3.0}
    assert pool.config.processor == "p"


def test_step_3_the_model_summary(assets_dir: Path) -> None:
    names: dict[str, Any] = {"nn": nn, "Dict": dict, "Any": Any}
    exec(sample(assets_dir, "summary.py.txt"), names)
    model = image_model()
    model[1].bias.requires_grad_(False)
    info = names["evaluate"](None, model)["model_info"]
    assert info == {"trainable_params": 1920, "all_params": 1930, "trainable_percentage": 1920 / 1930}


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = types.ModuleType("datasets")
    stub.load_dataset = Sentences  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)


def test_the_complete_example_and_its_config(
    glue: None, monkeypatch: pytest.MonkeyPatch, assets_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = module_of(monkeypatch, "sample_text", sample(assets_dir, "text_classification.py.txt"))
    config = OmegaConf.load(assets_dir / "spec" / "glue.yaml")
    theirs = module.TextClassificationTaskPool(config.test_datasets, config.dataloader_kwargs)
    with caplog.at_level("INFO"):
        report = theirs.evaluate(Classifier())
    assert "Evaluation Result" in caplog.text
    ours = instantiate(config)
    assert type(ours).__module__ == "fusion_eval.taskpool.text_classification"
    found = ours.evaluate(Classifier())
    assert found["model_info"] == report["model_info"]
    for task in ("sst2", "mnli", "average"):
        assert found[task]["accuracy"] == pytest.approx(report[task]["accuracy"])


def test_the_distributed_example(monkeypatch: pytest.MonkeyPatch, assets_dir: Path) -> None:
    code = sample(assets_dir, "distributed.py.txt").replace(
        "# ... run evaluation ...", "return self.finish(model, dataloader)"
    )
    module = module_of(monkeypatch, "distributed", code, nn=nn, Dict=dict, Any=Any)

    class Completed(module.DistributedEvaluationTaskPool):  # type: ignore[name-defined, misc]
        @property
        def test_dataloader(self) -> DataLoader[Any]:
            return DataLoader(Pictures("./data", False, True), batch_size=16)

        def finish(self, model: nn.Module, loader: Any) -> dict[str, Any]:
            return {"all": {"items": float(sum(len(model(x)) for x, _ in loader))}}

    pool = Completed({"all": None})
    assert pool.test_datasets == {"all": None}
    assert lift(pool.evaluate(image_model()), "m", "merged").tasks[0].metrics["items"].value == 40


def test_the_defaults_list_example_composes(assets_dir: Path) -> None:
    printed = OmegaConf.load(assets_dir / "spec" / "clip.yaml")
    shipped = OmegaConf.load(
        config_dir() / "taskpool" / "CLIPVisionModelTaskPool" / "clip-vit-classification_TA8_val.yaml"
    )
    assert [entry for entry in shipped.defaults if entry != "_self_"] == list(printed.defaults)
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        config = compose("fusion_eval", ["taskpool=CLIPVisionModelTaskPool/clip-vit-classification_TA8_val"])
    assert list(config.taskpool.test_datasets) == list(
        printed.defaults[1]["/dataset/image_classification/val@test_datasets"]
    )
    assert config.taskpool._target_ == "fusion_eval.taskpool.CLIPVisionModelTaskPool"


def test_the_samples_are_those_of_the_contract(shared_dir: Path, assets_dir: Path) -> None:
    contract = (shared_dir / "spec" / "taskpool.txt").read_text().replace("fusion_bench", "fusion_eval")
    for path in sorted((assets_dir / "spec").iterdir()):
        assert path.read_text().strip() in contract, path.name
