from __future__ import annotations

import gc
import weakref

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fusion_eval.errors import AlignmentError, CheckpointError, ConfigError
from fusion_eval.merge.engine import MergedCheckpoint
from fusion_eval.modelpool import CheckpointPool, ModulePool, StateDictPool


def network(classes: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes)).eval()


SKELETON = {"_target_": f"{__name__}.network"}


@pytest.fixture
def files(tmp_path):
    for seed, name in enumerate(("base", "a", "b")):
        save_file(network(seed=seed).state_dict(), tmp_path / f"{name}.safetensors")
    return tmp_path


def pool_of(files, **kwargs):
    experts = {name: str(files / f"{name}.safetensors") for name in ("a", "b")}
    return CheckpointPool(str(files / "base.safetensors"), experts, **{"skeleton": SKELETON, **kwargs})


def mean(group):
    return torch.stack(group.values()).mean(0)


def test_models_are_named_loaded_and_merged(files):
    pool = pool_of(files)
    assert pool.names == ("base", "a", "b")
    assert pool.faults() == []
    inputs = torch.randn(7, 4)
    torch.testing.assert_close(pool.load("a")(inputs), network(seed=1)(inputs))
    merged = pool.build(MergedCheckpoint(mean, pool.aligned()))
    expected = (network(seed=1)[0].weight + network(seed=2)[0].weight) / 2
    torch.testing.assert_close(merged[0].weight, expected)
    assert not merged.training


def test_nothing_is_held_that_nobody_uses(files):
    pool = pool_of(files)
    checkpoint = pool.checkpoint("a")
    assert pool.checkpoint("a") is checkpoint
    seen = weakref.ref(checkpoint)
    del checkpoint
    gc.collect()
    assert seen() is None


def test_fusion_bench_spelling_and_lists_name_the_same_models(files):
    paths = {name: str(files / f"{name}.safetensors") for name in ("base", "a", "b")}
    models = CheckpointPool(models={"_pretrained_": paths["base"], "a": paths["a"], "b": paths["b"]})
    listed = CheckpointPool(paths["base"], [paths["a"], paths["b"]])
    assert models.names == listed.names == ("base", "a", "b")
    assert models.checkpoint("b").fingerprint() == listed.checkpoint("b").fingerprint()


def test_a_model_may_be_built_by_a_node(files):
    pool = pool_of(files, skeleton=SKELETON)
    made = CheckpointPool({**SKELETON, "seed": 0}, {"a": {**SKELETON, "seed": 1}}, skeleton=SKELETON)
    for name in made.names:
        assert made.checkpoint(name).fingerprint() == pool.checkpoint(name).fingerprint()


def test_a_misspelt_model_is_one_line_with_a_hint(files):
    with pytest.raises(ConfigError, match=r"no model 'bas'; expected one of base, a, b\. Did you mean 'base'"):
        pool_of(files).load("bas")


def test_all_unreadable_models_are_in_one_error(files):
    (files / "b.safetensors").write_bytes((files / "b.safetensors").read_bytes()[:-9])
    pool = pool_of(files)
    pool._experts["c"] = str(files / "aa.safetensors")
    wheres = [fault.where for fault in pool.faults()]
    assert [where.partition(" (")[0] for where in wheres] == ["modelpool.experts.b", "modelpool.experts.c"]
    assert "Did you mean 'a.safetensors'" in str(pool.faults()[1])
    with pytest.raises(CheckpointError, match=r"modelpool\.experts\.b \(.*b\.safetensors\)"):
        pool.checkpoint("b")


def test_one_other_shape_is_one_fault_that_names_the_tensor(files):
    save_file(network(classes=4).state_dict(), files / "b.safetensors")
    (fault,) = pool_of(files).faults()
    assert str(fault).startswith("model 'b': 2 of 9 tensors differ in shape: ")
    assert "3.weight is (3, 5) in 'base' and (4, 5) here" in str(fault)
    with pytest.raises(AlignmentError, match=r"3\.bias"):
        pool_of(files).aligned()


def test_integers_against_floats_do_not_align(files):
    state = network(seed=2).state_dict()
    state["0.weight"] = torch.zeros(5, 4, dtype=torch.int8)
    save_file(state, files / "b.safetensors")
    (fault,) = pool_of(files).faults()
    assert "1 of 9 tensors differ in kind: 0.weight is float32 in 'base' and int8 here" in str(fault)


def test_another_precision_aligns(files):
    state = {k: v.half() if v.is_floating_point() else v for k, v in network(seed=2).state_dict().items()}
    save_file(state, files / "b.safetensors")
    assert pool_of(files).faults() == []


def test_a_skeleton_of_another_architecture_is_found_before_work(files):
    (fault,) = pool_of(files, skeleton={**SKELETON, "classes": 9}).faults()
    assert str(fault).startswith("modelpool.skeleton: 2 weights of Sequential differ in shape: 3.weight is (9, 5)")


def test_without_a_skeleton_merging_works_and_loading_says_what_to_give(files):
    pool = pool_of(files, skeleton=None)
    assert pool.faults() == []
    assert len(MergedCheckpoint(mean, pool.aligned())) == 9
    with pytest.raises(ConfigError, match=r"modelpool\.skeleton: none.*Give a node such as"):
        pool.load("a")


def test_tensors_can_be_left_out(files):
    pool = pool_of(files, exclude=(r"^3\.",))
    assert sorted({name.split(".")[0] for name in pool.checkpoint("a")}) == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"modelpool: no models"),
        ({"experts": {"a": None}}, r"modelpool\.experts\.a: no source"),
        ({"base": "x", "models": {"a": "y"}}, r"modelpool\.models: given together with base or experts"),
        ({"experts": {"base": "x"}}, r"modelpool\.experts\.base: the base's own name"),
        ({"experts": "x.safetensors"}, r"modelpool\.experts: a str; expected a mapping"),
        ({"experts": ["p/x.safetensors", "q/x.safetensors"]}, r"two models named 'x'"),
        (
            {"experts": {"a": "x"}, "heads": {}, "head_module": "fc"},
            r"modelpool\.heads: given together with head_module",
        ),
        ({"experts": {"a": "x"}, "skeletn": 1}, r"modelpool\.skeletn: CheckpointPool takes no 'skeletn'.*'skeleton'"),
    ],
)
def test_faulty_arguments_are_refused_with_their_key(arguments, message):
    with pytest.raises(ConfigError, match=message):
        CheckpointPool(**arguments)


def test_a_source_of_an_unknown_kind_is_named():
    with pytest.raises(ConfigError, match=r"modelpool\.experts\.a: a float; expected a path"):
        CheckpointPool(experts={"a": 0.3}).checkpoint("a")


def test_state_dicts_and_modules_give_the_same_pool():
    models = {name: network(seed=seed) for seed, name in enumerate(("base", "a", "b"))}
    before = {name: model[0].weight.clone() for name, model in models.items()}
    experts = {name: models[name] for name in ("a", "b")}
    modules = ModulePool(models["base"], experts)
    states = StateDictPool(
        models["base"].state_dict(), {n: m.state_dict() for n, m in experts.items()}, skeleton=network
    )
    inputs = torch.randn(7, 4)
    for pool in (modules, states):
        assert pool.faults() == []
        torch.testing.assert_close(pool.load("b")(inputs), models["b"](inputs))
        pool.build(MergedCheckpoint(mean, pool.aligned()))
    assert all(torch.equal(models[name][0].weight, before[name]) for name in models)
    with pytest.raises(ConfigError, match=r"modelpool\.experts\.a: a str; expected a state dict"):
        StateDictPool(experts={"a": "path"}).checkpoint("a")
    with pytest.raises(ConfigError, match=r"a dict; expected a torch\.nn\.Module"):
        ModulePool(experts={"a": {}}).checkpoint("a")


def test_an_experts_own_head_is_not_merged_and_is_given_back():
    torch.manual_seed(3)
    experts = {"two": network(classes=2, seed=1), "seven": network(classes=7, seed=2)}
    pool = ModulePool(network(classes=9), experts, head_module="3")
    assert pool.faults() == []  # the heads differ in shape, and that is as it should be
    inputs = torch.randn(6, 4)
    for task, expert in experts.items():
        torch.testing.assert_close(pool.head(task)(pool.load(task)(inputs)), expert(inputs))
    with pytest.raises(ConfigError, match=r"no head for task 'tow'; expected one of two, seven\. Did you mean 'two'"):
        pool.head("tow")


def test_a_nonlinear_head_is_loaded_as_a_module():
    def model(seed):
        torch.manual_seed(seed)
        return nn.ModuleDict(
            {"body": nn.Linear(4, 4), "head": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))}
        )

    experts = {"a": model(1)}
    head = ModulePool(model(0), experts, head_module="head").head("a")
    features = torch.randn(3, 4)
    torch.testing.assert_close(head(features), experts["a"]["head"](features))
    with pytest.raises(ConfigError, match=r"no submodule 'hed'; expected one like body, head"):
        ModulePool(model(0), experts, head_module="hed").skeleton()


def test_heads_come_from_files_folders_and_mappings(tmp_path):
    one, two = torch.randn(2, 4), torch.randn(3, 4)
    save_file({"a": one, "b": two}, tmp_path / "heads.safetensors")
    folder = tmp_path / "heads"
    folder.mkdir()
    save_file({"weight": one}, folder / "a.safetensors")
    save_file({"fc.weight": two, "fc.bias": torch.ones(3)}, folder / "b.safetensors")
    given = {"a": one, "b": nn.Linear(4, 3)}
    features = torch.randn(5, 4)
    for heads in (str(tmp_path / "heads.safetensors"), folder, given):
        pool = CheckpointPool(experts={"a": "unused"}, heads=heads)
        torch.testing.assert_close(pool.head("a")(features), features @ one.T)
        assert pool.head("b")(features).shape == (5, 3)
        assert pool.head("a") is pool.head("a")
        with pytest.raises(ConfigError, match=r"modelpool\.heads: no head for task 'c'; expected one of a, b"):
            pool.head("c")
    assert CheckpointPool(experts={"a": "unused"}).head("a") is None


def test_the_pool_writes_its_own_config(files, tmp_path):
    pool = pool_of(files)
    pool.to_yaml(tmp_path / "pool.yaml")
    again = CheckpointPool.from_yaml(tmp_path / "pool.yaml")
    assert again.names == pool.names
    assert again.checkpoint("a").fingerprint() == pool.checkpoint("a").fingerprint()


def test_torchvision_by_target(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    node = {"_target_": "torchvision.models.resnet18", "num_classes": 5}
    torch.manual_seed(0)
    expert = torchvision.models.resnet18(num_classes=5).eval()
    save_file(expert.state_dict(), tmp_path / "expert.safetensors")
    pool = CheckpointPool(node, {"a": str(tmp_path / "expert.safetensors")}, skeleton=node)
    assert pool.faults() == []
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(pool.load("a")(images), expert(images))
    assert all(parameter.is_meta for parameter in pool.skeleton().parameters())


def test_an_expert_may_be_the_base_with_an_adapter(files, tmp_path):
    folder = tmp_path / "lora"
    folder.mkdir()
    down, up = torch.randn(2, 4), torch.randn(5, 2)
    save_file({"base_model.model.0.lora_A.weight": down, "base_model.model.0.lora_B.weight": up},
              folder / "adapter_model.safetensors")  # fmt: skip
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    pool = CheckpointPool(str(files / "base.safetensors"), {"a": {"adapter": str(folder)}}, skeleton=SKELETON)
    assert pool.faults() == []
    torch.testing.assert_close(pool.load("a")[0].weight, pool.load("base")[0].weight + up @ down)
    with pytest.raises(ConfigError, match=r"modelpool\.experts\.a: an adapter without a base in a file"):
        CheckpointPool(experts={"a": {"adapter": str(folder)}}).checkpoint("a")
    with pytest.raises(ConfigError, match=r"modelpool\.experts\.a: no key 'scale'"):
        CheckpointPool("x", {"a": {"adapter": str(folder), "scale": 2}}).checkpoint("a")
