"""Pipelines: slices equal whole tensors, steps in order, options by pattern, depth and expert, compositions in YAML."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import ConfigError, MethodError
from fusion_eval.merge.engine import MergedCheckpoint
from fusion_eval.merge.group import ElementwiseRule, ScannedRule
from fusion_eval.method.arcee_fusion import ArceeFusion
from fusion_eval.method.awd import Awd
from fusion_eval.method.breadcrumbs import BreadcrumbsTies
from fusion_eval.method.dare import Dare, DareTies
from fusion_eval.method.della import Della, DellaLinear
from fusion_eval.method.karcher import Karcher
from fusion_eval.method.lines import Lines
from fusion_eval.method.model_stock import ModelStock
from fusion_eval.method.multislerp import MultiSlerp
from fusion_eval.method.nuslerp import NuSlerp
from fusion_eval.method.pcb import Pcb
from fusion_eval.method.pipeline import Flow, Pipeline
from fusion_eval.method.ram import RamPlus
from fusion_eval.method.sce import Sce
from fusion_eval.method.slerp import Slerp
from fusion_eval.method.step import Align, Drop, Elect, Isotropic, Scale, StockRows, Sum, Trim
from fusion_eval.method.task_arithmetic import TaskArithmetic
from fusion_eval.method.ties import Ties
from tests.method.conftest import StatePool

SCANNED = [
    Ties(0.2),
    Ties(0.2, scope="tensor"),
    Dare(0.3),
    Dare(0.3, rescale="norm"),
    DareTies(0.7),
    BreadcrumbsTies(0.5, 0.05),
    Della(),
    ModelStock(filter_wise=True),
    Pipeline([Drop(0.5), StockRows(), Scale(2.0)]),
    DellaLinear(rescale="norm"),
    Sce(0.3),
    RamPlus(epsilon=0.05),
    MultiSlerp(),
    Karcher(),
    ModelStock(),
    Pcb(),
    Awd(),
    TaskArithmetic(),
    Pipeline([Drop(0.5), Trim(0.3, "tensor", "norm"), Elect(), Scale(0.5)]),
    Pipeline([Drop(0.5, "norm"), Trim(0.3), Elect(), Scale(0.5)]),
]


def large_pool(dtype=torch.float32, size=(701, 503)):
    generator = torch.Generator().manual_seed(5)
    draw = lambda scale: (torch.randn(size, generator=generator) * scale).to(dtype)  # noqa: E731
    base = {"layers.0.weight": draw(1.0), "bias": draw(1.0)[0]}
    experts = {}
    for index in range(3):
        experts[f"t{index}"] = {
            "layers.0.weight": base["layers.0.weight"] + draw(0.1),
            "bias": base["bias"] + draw(0.1)[1],
        }
    return StatePool(base, experts)


@pytest.mark.parametrize("method", SCANNED, ids=lambda m: type(m).__name__)
def test_slices_equal_the_whole_tensor(method):
    pool = large_pool()
    aligned = pool.aligned(4)
    rule = method.prepare(pool, seed=4)
    assert isinstance(rule, ElementwiseRule | ScannedRule)
    sliced = MergedCheckpoint(rule, aligned)
    flow = method.bind(aligned)
    assert isinstance(flow, Flow)
    for name in aligned.reference:
        whole = flow(aligned.group(name))
        off = (sliced[name] - whole).abs() > 1e-6 * whole.abs() + 1e-7
        assert off.sum() <= 2  # a norm rounded otherwise may move an entry across a threshold


@pytest.mark.parametrize("method", [Ties(0.2, scope="tensor"), Dare(0.3), Slerp(0.3)], ids=lambda m: type(m).__name__)
def test_a_rule_of_one_group_is_the_method_on_a_model_of_one_tensor(method):
    pool = large_pool(size=(40, 30))
    if isinstance(method, Slerp):
        pool = StatePool(None, dict(list(pool.experts.items())[:2]))
    group = pool.aligned(0).group("layers.0.weight")
    alone = StatePool(
        None if pool.base is None else {group.name: group.base},
        {name: {group.name: state[group.name]} for name, state in pool.experts.items()},
    )
    assert torch.equal(method.rule(group), method.apply(alone)[group.name])


def test_options_by_pattern_depth_and_expert(pool):
    by_expert = Ties({"task0": 1.0, "task1": 0.001, "task2": 0.001}, scope="tensor", combine="sum").apply(pool)
    name = "layers.0.linear.weight"
    delta = pool.experts["task0"][name] - pool.base[name]
    change = by_expert[name] - pool.base[name]
    assert ((change - delta).abs() < 1e-5).float().mean() > 0.9
    nested = TaskArithmetic({"linear": [0.0, 1.0], "default": 0.0}, weights={"task1": 1.0, "default": 0.0}).apply(pool)
    last = "layers.1.linear.weight"
    torch.testing.assert_close(nested[last], pool.experts["task1"][last])
    torch.testing.assert_close(nested[name], pool.base[name])


def test_lines_scales_by_depth(pool):
    merged = Lines(0.1, 0.6, last=r"^head\.").apply(pool)
    total = lambda name: sum(state[name] - pool.base[name] for state in pool.experts.values())  # noqa: E731
    for name, factor in (("layers.0.conv.weight", 0.1), ("layers.1.linear.weight", 0.7), ("head.weight", 0.7)):
        torch.testing.assert_close(merged[name], pool.base[name] + factor * total(name), rtol=1e-5, atol=1e-6)
    embed = "embed.weight"
    torch.testing.assert_close(merged[embed], pool.base[embed] + 0.1 * total(embed), rtol=1e-5, atol=1e-6)
    automatic = Lines(beta=0.0).apply(pool)
    torch.testing.assert_close(automatic[embed], pool.base[embed] + total(embed) / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Trim()], "exactly one step that combines"),
        ([Sum(), Elect()], "exactly one step that combines"),
        ([Sum(), Trim()], "steps on task vectors, the combining step"),
        ([Scale(), Sum()], "steps on task vectors, the combining step"),
        ([], "exactly one step that combines"),
    ],
)
def test_steps_out_of_order_are_refused(steps, words):
    with pytest.raises(ConfigError, match=words):
        Pipeline(steps)


def test_a_wrong_option_of_a_step_is_named_by_its_place():
    with pytest.raises(ConfigError) as error:
        Pipeline([Trim(3.0), Elect("man"), Scale("x")])
    message = str(error.value)
    assert "method.steps[0].density" in message
    assert "method.steps[1].combine" in message
    assert "method.steps[2].scaling" in message


def test_pipeline_over_averages_needs_no_base(make_pool):
    pool = make_pool(with_base=False)
    assert not Pipeline([Sum(normalize=True)], origin="none").faults(pool)
    assert "method.origin=base" in str(Pipeline([Sum()]).faults(pool)[0])


def test_aligned_space_gives_task_vectors_back(pool):
    aligned = Pipeline([Align(), Sum()]).apply(pool)
    plain = TaskArithmetic(1.0).apply(pool)
    for name in plain:
        if plain[name].is_floating_point():
            torch.testing.assert_close(aligned[name], plain[name], rtol=1e-4, atol=1e-5)


def test_rows_and_importance_in_blocks_equal_the_whole_tensor():
    pool = large_pool()
    one = StatePool(pool.base, {"t0": pool.experts["t0"]})
    for method, models in ((ArceeFusion(), one), (NuSlerp([0.3, 0.7], "row"), large_pool())):
        if isinstance(method, NuSlerp):
            models.experts.pop("t2")
        rule, aligned = method.prepare(models), models.aligned(0)
        assert isinstance(rule, ScannedRule)
        assert rule.rows
        for name in aligned.reference:
            whole = method.bind(aligned)(aligned.group(name))
            torch.testing.assert_close(MergedCheckpoint(rule, aligned)[name], whole, rtol=1e-6, atol=1e-7)


def test_depth_without_layers_is_a_fault():
    state = {"a.weight": torch.ones(2), "b.weight": torch.ones(2)}
    pool = StatePool(state, {"x": state, "y": state})
    assert "no numbered layers" in str(Lines().faults(pool)[0])
    assert "no numbered layers" in str(TaskArithmetic([0.1, 0.9]).faults(pool)[0])
    assert not TaskArithmetic(0.3, weights=[1.0, 2.0]).faults(pool)


def test_values_that_are_not_finite_are_named(pool):
    pool.experts["task1"] = pool.experts["task1"] | {"head.weight": torch.full((5, 6), float("nan"))}
    with pytest.raises(MethodError, match=r"tensor 'head\.weight'.*task1"):
        Pipeline([Isotropic()]).apply(pool)["head.weight"]


def test_tables_are_no_matrices(pool):
    merged = Pipeline([Isotropic()], tensors={"tables": "embed"}).apply(pool)
    mean = sum(state["embed.weight"] for state in pool.experts.values()) / 3
    torch.testing.assert_close(merged["embed.weight"], mean)
