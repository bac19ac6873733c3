"""Bad input: one clear error (where, found, expected, do) before work starts, and nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import Dataset

from fusion_eval.assets.digits import DigitsDataset, checkpoint_path
from fusion_eval.build import build_option
from fusion_eval.errors import (
    AlignmentError,
    CheckpointError,
    ConfigError,
    DataError,
    EvaluationError,
    FusionEvalError,
    OutputError,
)
from fusion_eval.modelpool import CheckpointPool
from fusion_eval.program.fusion import FusionProgram
from fusion_eval.program.launch import build_fabric
from fusion_eval.taskpool import DummyTaskPool
from tests.program.running import run

HERE = "tests.program.test_bad_input"


class Items(Dataset[Any]):
    """Digits, spoilt in one way."""

    def __init__(self, way: str) -> None:
        self.way, self.data = way, DigitsDataset("upright", "test")

    def __len__(self) -> int:
        return 0 if self.way == "empty" else 30

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[index]
        if self.way == "labels outside":
            return image, 12 if index == 7 else label
        if self.way == "triples":
            return image, label, index
        if self.way == "no label":
            return {"image": image, "digit": label}
        if self.way == "float labels":
            return image, float(label)
        if self.way == "nan":
            return image * float("nan") if index == 3 else image, label
        raise AssertionError(self.way)


class Folder(Dataset[Any]):
    """A data set that reads a folder."""

    def __init__(self, root: str) -> None:
        self.files = sorted(Path(root).iterdir())


def tasks(**nodes: Any) -> dict[str, Any]:
    datasets = {name: {"_target_": f"{HERE}.{kind}", **rest} for name, (kind, rest) in nodes.items()}
    return {
        "_target_": "fusion_eval.taskpool.ImageClassificationTaskPool",
        "test_datasets": datasets,
        "heads": {"_target_": f"{HERE}.heads"},
        "dataloader_kwargs": {"batch_size": 8},
    }


def heads() -> Callable[[str], nn.Module]:
    from fusion_eval.assets.digits import class_codes
    from fusion_eval.task.heads import LinearHead

    return lambda task: LinearHead(class_codes("upright"), name=task)


@pytest.mark.parametrize(
    ("way", "error", "message"),
    [
        ("empty", DataError, r"task 'bad': the data set has no items\. Check its path and split\."),
        (
            "labels outside",
            DataError,
            r"1 labels outside the head's 10 classes: 12 \(items 7\); expected labels from 0 to 9",
        ),
        (
            "triples",
            DataError,
            r"task 'bad': a batch of 3 parts; expected a pair \(input, target\)",
        ),
        ("no label", DataError, r"task 'bad': no label among image, digit; expected one of labels, label"),
        ("float labels", DataError, r"labels of shape \(30,\) and dtype torch.float64; expected class indices"),
        ("nan", EvaluationError, r"model 'base', task 'bad': 1 of 30 outputs are NaN or infinite \(items 3\)"),
    ],
)
def test_spoilt_items(tmp_path: Path, way: str, error: type[FusionEvalError], message: str) -> None:
    with pytest.raises(error, match=message):
        run(tmp_path, taskpool=tasks(bad=("Items", {"way": way})))
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["status"] == "failed"
    assert stored["models"] == {}
    assert stored["error"]


def test_all_data_sets_that_cannot_be_opened_are_told_at_once(tmp_path: Path) -> None:
    pool = tasks(one=("Folder", {"root": str(tmp_path / "absent")}), two=("Items", {"way": "empty"}))
    with pytest.raises(FusionEvalError) as caught:
        run(tmp_path / "out", taskpool=pool)
    assert len(caught.value.faults) == 2
    assert "taskpool.test_datasets.one" in str(caught.value)
    assert "No such file or directory" in str(caught.value)


def pool_with(tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None] | None = None) -> dict[str, Any]:
    """Checkpoint files of the embedded experts, one of them changed."""
    expert = load_file(checkpoint_path("upright"))
    if change is not None:
        change(expert)
    save_file(expert, tmp_path / "upright.safetensors")
    return {
        "_target_": "fusion_eval.modelpool.CheckpointPool",
        "base": str(checkpoint_path("base")),
        "experts": {"edges": str(checkpoint_path("edges")), "upright": str(tmp_path / "upright.safetensors")},
        "skeleton": {"_target_": "fusion_eval.assets.digits.DigitsEncoder"},
    }


def test_an_expert_of_another_shape(tmp_path: Path) -> None:
    def widen(state: dict[str, torch.Tensor]) -> None:
        state["projection.weight"] = torch.zeros(33, 336)

    with pytest.raises(FusionEvalError) as caught:
        run(tmp_path / "out", "taskpool=dummy", modelpool=pool_with(tmp_path, widen))
    message = str(caught.value)
    for part in ("upright", "projection.weight", "(32, 336)", "(33, 336)"):
        assert part in message


def test_an_expert_without_a_tensor(tmp_path: Path) -> None:
    with pytest.raises(FusionEvalError, match=r"lacks 1 of \d+ tensors.*norm1.bias"):
        run(tmp_path / "out", "taskpool=dummy", modelpool=pool_with(tmp_path, lambda state: state.pop("norm1.bias")))


def test_a_truncated_checkpoint(tmp_path: Path) -> None:
    pool = pool_with(tmp_path)
    path = tmp_path / "upright.safetensors"
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(FusionEvalError, match=r"upright.safetensors\): 50000 bytes where its header promises \d+"):
        run(tmp_path / "out", "taskpool=dummy", f"save={tmp_path / 'merged'}", modelpool=pool)
    assert not (tmp_path / "merged").exists()


def test_an_absent_checkpoint(tmp_path: Path) -> None:
    pool = pool_with(tmp_path)
    (tmp_path / "upright.safetensors").unlink()
    with pytest.raises(FusionEvalError, match=r"upright.safetensors"):
        run(tmp_path / "out", "taskpool=dummy", modelpool=pool)


def test_a_merge_that_is_not_finite(tmp_path: Path) -> None:
    def poison(state: dict[str, torch.Tensor]) -> None:
        state["linear1.weight"][0, 0] = float("nan")

    pool = pool_with(tmp_path, poison)
    with pytest.raises(FusionEvalError, match=r"NaN|not finite"):
        run(tmp_path / "out", taskpool=tasks(edges=("Items", {"way": "nan"})), modelpool=pool)


def test_a_head_less_pool_says_what_is_missing(tmp_path: Path) -> None:
    pool = {**tasks(upright=("Items", {"way": "labels outside"})), "heads": None}
    pool["test_datasets"] = {"u": {"_target_": f"{HERE}.Far"}}
    models = pool_with(tmp_path)
    with pytest.raises(DataError, match=r"30 labels outside the head's 32 classes: 1000"):
        run(tmp_path / "out", taskpool=pool, modelpool=models)


class Far(Items):
    """Labels beyond any head."""

    def __init__(self) -> None:
        super().__init__("labels outside")

    def __getitem__(self, index: int) -> Any:
        return self.data[index][0], 1000


def test_too_few_experts_and_no_base_are_told_together(tmp_path: Path) -> None:
    pool = {**pool_with(tmp_path), "base": None}
    with pytest.raises(ConfigError, match=r"modelpool.base: no base model, which TaskArithmetic needs"):
        run(tmp_path / "out", "method=task_arithmetic", "taskpool=dummy", modelpool=pool)


def test_a_limit_for_a_pool_that_cannot_be_limited(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"limit: set, but DummyTaskPool evaluates all items"):
        run(tmp_path / "out", "taskpool=dummy", "limit=3")


def test_a_misspelt_metric(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"taskpool.metrics: no metric 'acuracy'.*Did you mean 'accuracy'"):
        run(tmp_path / "out", "taskpool.metrics=[acuracy]")


def test_alignment_error_is_a_checkpoint_error() -> None:
    assert issubclass(AlignmentError, CheckpointError)


def test_every_model_that_cannot_be_opened_is_told_at_once_and_once(tmp_path: Path) -> None:
    pool = CheckpointPool(str(tmp_path / "base"), {"a": str(tmp_path / "a"), "b": str(tmp_path / "b")})
    program = FusionProgram(build_option("method", "ties"), pool, DummyTaskPool())
    with pytest.raises(ConfigError) as caught:
        program.run()
    keys = ["modelpool.base", "modelpool.experts.a", "modelpool.experts.b"]
    assert [fault.where.partition(" ")[0] for fault in caught.value.faults] == keys


class Words(Items):
    """Labels that are texts."""

    def __init__(self) -> None:
        super().__init__("words")

    def __getitem__(self, index: int) -> Any:
        return self.data[index][0], "seven"


def test_labels_that_are_texts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"task 'bad': labels such as 'seven'; expected class indices"):
        run(tmp_path / "out", taskpool=tasks(bad=("Words", {})))


def pairs(rows: list[Any], shift: float) -> Any:
    return torch.stack([image + shift for image, _ in rows]), torch.tensor([label for _, label in rows])


def test_functions_of_the_loader_are_nodes(tmp_path: Path) -> None:
    function = {"_target_": f"{HERE}.pairs", "_partial_": True, "shift": 0.0}
    plain = tasks(edges=("Far", {}))
    plain["test_datasets"] = {"edges": {"_target_": "fusion_eval.assets.digits.DigitsDataset", "view": "edges"}}
    given = {**plain, "dataloader_kwargs": {"batch_size": 8, "collate_fn": function}}
    reports = [run(tmp_path / name, "limit=20", taskpool=pool) for name, pool in (("a", plain), ("b", given))]
    assert reports[0].as_dict()["report"] == reports[1].as_dict()["report"]


def test_components_of_another_kind(tmp_path: Path) -> None:
    linear = {"_target_": "torch.nn.Linear", "in_features": 1, "out_features": 1}
    with pytest.raises(ConfigError, match=r"method: a Linear; expected a Method\. Derive from fusion_eval\.method"):
        run(tmp_path / "out", "taskpool=dummy", method=linear)


def test_no_models_to_evaluate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"program\.models: no models; expected some of base, upright"):
        run(tmp_path / "out", "program=evaluate", "program.models=[]")


def test_one_model_may_be_named_without_a_list(tmp_path: Path) -> None:
    report = run(tmp_path / "out", "program=evaluate", "program.models=edges", "limit=2")
    assert [model.name for model in report.models] == ["edges"]


def test_names_that_are_no_tasks(tmp_path: Path) -> None:
    pool = tasks(average=("Far", {}))
    pool["test_datasets"][1] = {"_target_": f"{HERE}.Far"}
    with pytest.raises(ConfigError) as caught:
        run(tmp_path / "out", taskpool=pool)
    assert "taskpool.test_datasets.average: a name that reports use. Rename the task." in str(caught.value)
    assert "taskpool.test_datasets: a task named 1; expected a text. Quote it: '1'." in str(caught.value)


def test_an_expert_called_as_the_merge_is(tmp_path: Path) -> None:
    pool = pool_with(tmp_path)
    pool["experts"]["merged"] = pool["experts"].pop("edges")
    with pytest.raises(ConfigError, match=r"modelpool.experts.merged: 'merged' is what the report calls the merge"):
        run(tmp_path / "out", "taskpool=dummy", modelpool=pool)


def test_weights_without_an_architecture_are_merged_and_saved_but_not_run(tmp_path: Path) -> None:
    pool = {**pool_with(tmp_path), "skeleton": None}
    report = run(tmp_path / "out", "taskpool=dummy", f"save={tmp_path / 'merged'}", modelpool=pool)
    assert report.subject.model_info == {"all_params": 147168}
    assert set(load_file(tmp_path / "merged" / "model.safetensors")) == set(load_file(checkpoint_path("base")))
    with pytest.raises(
        ConfigError, match=r"modelpool.skeleton: none, so no model can be run; expected an architecture"
    ):
        run(tmp_path / "out", f"save={tmp_path / 'again'}", modelpool=pool)
    assert not (tmp_path / "again").exists()


def test_two_runs_in_one_output(tmp_path: Path) -> None:
    from fusion_eval.report.files import held

    with held(tmp_path), pytest.raises(OutputError, match="another run writes there at this moment"):
        run(tmp_path, "limit=2", "program.experts=none")
    run(tmp_path, "limit=2", "program.experts=none")


def test_a_dry_run_keeps_what_was_measured(tmp_path: Path) -> None:
    run(tmp_path, "limit=2", "program.experts=none")
    (tmp_path / "items" / "old").mkdir()
    run(tmp_path, "dry_run=true")
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "complete"
    assert (tmp_path / "items" / "old").exists()
    run(tmp_path, "limit=2", "program.experts=none")
    assert not (tmp_path / "items" / "old").exists()


def test_a_fabric_that_this_machine_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"fabric: building lightning\.fabric\.Fabric failed.*Use fabric=cpu, or set"):
        build_fabric({"_target_": "lightning.fabric.Fabric", "accelerator": "cpu", "devices": 3.5})
