"""Averages, task arithmetic, TIES, DARE and SLERP against their papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch

from fusion_eval.errors import ConfigError
from fusion_eval.method.dare import Dare, DareTies
from fusion_eval.method.simple_average import SimpleAverage
from fusion_eval.method.slerp import Slerp
from fusion_eval.method.task_arithmetic import TaskArithmetic
from fusion_eval.method.ties import Ties
from fusion_eval.method.weighted_average import WeightedAverage

STATISTICS = ("layers.1.norm.running_mean", "layers.1.norm.running_var")


def floats(pool):
    return [name for name, tensor in pool.experts["task0"].items() if tensor.is_floating_point()]


def weights_of(pool):
    return [name for name in floats(pool) if name not in STATISTICS]


def check(pool, merged, formula, rtol=1e-6):
    for name in weights_of(pool):
        base = pool.base[name].double() if pool.base else None
        wanted = formula(name, base, [expert[name].double() for expert in pool.experts.values()])
        torch.testing.assert_close(merged[name].double(), wanted, rtol=rtol, atol=rtol * 0.1)


def test_simple_average_is_the_mean_and_needs_no_base(make_pool):
    pool = make_pool(with_base=False)
    check(pool, SimpleAverage().apply(pool), lambda name, base, xs: sum(xs) / 3)


def test_weighted_average_takes_weights_by_place_or_by_name(pool):
    wanted = lambda name, base, xs: (xs[0] + 2 * xs[1] + 5 * xs[2]) / 8  # noqa: E731
    check(pool, WeightedAverage([1, 2, 5]).apply(pool), wanted)
    check(pool, WeightedAverage({"task1": 2, "task2": 5, "default": 1}).apply(pool), wanted)


def test_task_arithmetic(pool):
    check(pool, TaskArithmetic(0.4).apply(pool), lambda name, base, xs: base + 0.4 * sum(x - base for x in xs))


def test_task_arithmetic_scaling_may_depend_on_depth_and_pattern(pool):
    merged = TaskArithmetic({r"conv": 0.0, "default": [0.0, 1.0]}).apply(pool)
    total = lambda name: sum(x[name] - pool.base[name] for x in pool.experts.values())  # noqa: E731
    torch.testing.assert_close(merged["layers.0.linear.weight"], pool.base["layers.0.linear.weight"])
    torch.testing.assert_close(merged["layers.0.conv.weight"], pool.base["layers.0.conv.weight"])
    last = "layers.1.linear.weight"
    torch.testing.assert_close(merged[last], pool.base[last] + total(last))


def ties_reference(deltas, thresholds, how):
    trimmed = torch.stack([d * (d.abs() >= t) for d, t in zip(deltas, thresholds, strict=True)])
    sign = torch.where(trimmed.sum(0) >= 0, 1.0, -1.0)
    agrees = torch.sign(trimmed) == sign
    if how == "max":
        return (trimmed.abs() * agrees).max(0).values * sign
    total = (trimmed * agrees).sum(0)
    return total if how == "sum" else total / agrees.sum(0).clamp(min=1)


@pytest.mark.parametrize("how", ["mean", "sum", "max"])
@pytest.mark.parametrize("density", [0.05, 0.2, 1.0])
def test_ties_ranks_over_the_whole_model(pool, how, density):
    flat = [
        torch.cat([(expert[name] - pool.base[name]).abs().reshape(-1) for name in weights_of(pool)])
        for expert in pool.experts.values()
    ]
    thresholds = [f.sort(descending=True).values[max(1, int(density * len(f))) - 1] for f in flat]

    def wanted(name, base, xs):
        deltas = [x[name] - pool.base[name] for x in pool.experts.values()]
        return base + 0.7 * ties_reference(deltas, thresholds, how).double()

    check(pool, Ties(density, 0.7, how).apply(pool), wanted)


def test_ties_ranks_within_a_tensor(pool):
    def wanted(name, base, xs):
        deltas = [x[name] - pool.base[name] for x in pool.experts.values()]
        k = max(1, int(0.3 * base.numel()))
        thresholds = [d.abs().reshape(-1).sort(descending=True).values[k - 1] for d in deltas]
        return base + ties_reference(deltas, thresholds, "mean").double()

    check(pool, Ties(0.3, scope="tensor").apply(pool), wanted)


def test_ties_keeps_the_same_entries_in_float64(make_pool):
    pool = make_pool(dtype=torch.float64)
    merged = Ties(0.2).apply(pool)
    assert merged["head.weight"].dtype == torch.float64
    assert torch.isfinite(merged["head.weight"]).all()


def test_dare_is_right_in_expectation(pool):
    exact = TaskArithmetic(1.0).apply(pool)
    runs = [dict(Dare(0.25, 1.0).apply(pool, seed=seed)) for seed in range(400)]
    for name in ("layers.0.linear.weight", "head.weight"):
        mean = torch.stack([run[name] for run in runs]).mean(0)
        spread = torch.stack([run[name] for run in runs]).std(0) / math.sqrt(len(runs))
        assert ((mean - exact[name]).abs() <= 5 * spread + 1e-6).all()


def test_dare_drops_and_rescales(make_pool):
    pool = make_pool(1)
    name = "layers.0.conv.weight"
    delta = pool.experts["task0"][name] - pool.base[name]
    for rescale, factor in (("density", 4.0), ("none", 1.0)):
        got = Dare(0.25, 1.0, rescale).apply(pool)[name] - pool.base[name]
        kept = got.abs() > 1e-6
        torch.testing.assert_close(got[kept], factor * delta[kept], rtol=1e-4, atol=1e-5)
        assert 0.1 < kept.float().mean() < 0.45


def test_dare_masks_depend_on_seed_tensor_and_expert_only(make_pool):
    alone, together = make_pool(2), make_pool(3)
    one = Dare(0.5, 1.0, weights=[1, 0]).apply(alone, seed=7)
    other = Dare(0.5, 1.0, weights=[1, 0, 0]).apply(together, seed=7)
    for name in weights_of(alone):
        assert torch.equal(one[name], other[name])
    assert not torch.equal(one["head.weight"], Dare(0.5, 1.0, weights=[1, 0]).apply(alone, seed=8)["head.weight"])


def test_dare_ties_at_full_density_is_ties(pool):
    got, wanted = DareTies(1.0, 0.5).apply(pool), Ties(1.0, 0.5).apply(pool)
    assert all(torch.equal(got[name], wanted[name]) for name in got)


@pytest.mark.parametrize("t", [0.0, 0.2, 1.0])
def test_slerp_of_two_experts(make_pool, t):
    def wanted(name, base, xs):
        a, b = xs
        angle = torch.acos((a * b).sum() / a.norm() / b.norm())
        if torch.cos(angle).abs() > 0.9995:
            return (1 - t) * a + t * b
        return (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / torch.sin(angle)

    pool = make_pool(2)
    check(pool, Slerp(t).apply(pool), wanted, rtol=1e-5)


def test_slerp_of_the_base_and_one_expert(make_pool):
    pool = make_pool(1)
    merged = Slerp(0.0).apply(pool)
    torch.testing.assert_close(merged["head.weight"], pool.base["head.weight"])


def test_statistics_are_averaged_and_integers_come_from_the_base(pool):
    merged = TaskArithmetic(5.0).apply(pool)
    for name in STATISTICS:
        torch.testing.assert_close(merged[name], sum(x[name] for x in pool.experts.values()) / 3)
    assert merged["layers.1.norm.num_batches_tracked"] == pool.base["layers.1.norm.num_batches_tracked"]


def test_statistics_from_the_base_and_excluded_tensors(pool):
    policy = {"statistics": "base", "exclude": ["embed", r"^head\."], "others": "average"}
    merged = TaskArithmetic(tensors=policy).apply(pool)
    assert torch.equal(merged[STATISTICS[0]], pool.base[STATISTICS[0]])
    torch.testing.assert_close(merged["head.weight"], sum(x["head.weight"] for x in pool.experts.values()) / 3)
    included = TaskArithmetic(tensors={"include": "linear"}).apply(pool)
    assert torch.equal(included["head.weight"], pool.base["head.weight"])
    assert not torch.equal(included["layers.0.linear.weight"], pool.base["layers.0.linear.weight"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ties(density=0), ["method.density", "0", "(0, 1]"]),
        (lambda: Ties(density=20), ["method.density", "20"]),
        (lambda: Ties(combine="men"), ["method.combine", "'men'", "Did you mean 'mean'"]),
        (lambda: Dare(density=float("nan")), ["method.density", "nan"]),
        (lambda: Slerp(t=1.5), ["method.t", "1.5", "[0, 1]"]),
        (lambda: TaskArithmetic(scaling="big"), ["method.scaling", "'big' is not a number"]),
        (lambda: TaskArithmetic(scaling={"(": 1}), ["method.scaling.(", "regular expression"]),
        (lambda: TaskArithmetic(tensors={"exlude": "x"}), ["method.tensors.exlude", "Did you mean 'exclude'"]),
        (lambda: WeightedAverage([1, -1]), ["method.weights", "sum to 0"]),
    ],
)
def test_a_wrong_option_is_named(make, words):
    with pytest.raises(ConfigError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)


def test_all_wrong_options_are_named_at_once():
    with pytest.raises(ConfigError) as error:
        Ties(density=2, combine="x", scaling=float("inf"))
    assert len(error.value.faults) == 3


def test_options_that_do_not_fit_the_pool(pool, make_pool):
    def words(method, pool):
        return " ".join(str(fault) for fault in method.faults(pool))

    assert "method.weights: 2 numbers; expected 3, one per expert" in words(WeightedAverage([1, 2]), pool)
    assert "task3" in words(WeightedAverage({"task3": 1, "default": 1}), pool)
    assert "Did you mean" in words(WeightedAverage({"taks1": 1, "default": 1}), pool)
    assert "says nothing for tensor" in words(TaskArithmetic({"linear": 0.3}), pool)
    assert "method.tensors.exclude" in words(TaskArithmetic(tensors={"exclude": "lm_head"}), pool)
    assert "modelpool.base" in words(Ties(), make_pool(with_base=False))
    assert "2 for Slerp" in words(Slerp(), pool)
    assert "no base" in words(Slerp(), make_pool(1, with_base=False))
    assert not Ties(density={"task0": 0.1, "default": 0.2}).faults(pool)
