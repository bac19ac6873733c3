"""What must hold of every method: permuted, equal and unchanged experts, scale, rounding, untouched inputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fusion_eval.errors import MethodError
from fusion_eval.merge.per_task import TaskCheckpoints
from tests.method.conftest import StatePool, pool_of, state_dict
from tests.method.test_configs import FILES, instantiate

NAMES = [path.stem for path in FILES]
RANDOM = {"dare", "dare_ties", "della", "della_linear", "model_recombination"}
ORDERED = {
    "slerp",
    "nuslerp",
    "opcm",
    "dop",
    "magmax",
    "depth_upscaling",
    "layer_stack",
    "passthrough",
    "nearswap",
    "arcee_fusion",
    "weight_pruning",
}
OTHER_DEPTH = {"depth_upscaling"}
PER_TASK = {"emr", "emr_tsv", "tall_masks", "tsv_c", "bitdelta"}
NOT_HOMOGENEOUS = {  # a fixed distance, rate or distribution enters the formula
    "nearswap",
    "arcee_fusion",
    "ram",
    "ram_plus",
    "pcb",
    "wudi",
    "doge_ta",
    "dop",
}


def method_of(name):
    return instantiate(OmegaConf.load(FILES[NAMES.index(name)]))


def fitting(method, count=3):
    for number in (count, 2, 1):
        pool = pool_of(number)
        if not method.faults(pool):
            return pool
    raise AssertionError


def models(merged):
    return dict(merged) if isinstance(merged, TaskCheckpoints) else {"": merged}


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_never_changed(name):
    method = method_of(name)
    pool = fitting(method)
    before = {key: {n: t.clone() for n, t in state.items()} for key, state in {"b": pool.base, **pool.experts}.items()}
    for model in models(method.apply(pool)).values():
        dict(model)
    for key, state in {"b": pool.base, **pool.experts}.items():
        assert all(torch.equal(tensor, before[key][n]) for n, tensor in state.items()), key


@pytest.mark.parametrize("name", NAMES)
def test_twice_is_the_same_and_order_of_reading_does_not_matter(name):
    method = method_of(name)
    pool = fitting(method)
    first, second = models(method.apply(pool, seed=3)), models(method.apply(pool, seed=3))
    for key, model in first.items():
        backwards = {n: second[key][n] for n in reversed(list(second[key]))}
        assert all(torch.equal(model[n], backwards[n]) for n in model)


@pytest.mark.parametrize("name", sorted(set(NAMES) - RANDOM - ORDERED))
def test_permuting_experts_changes_nothing(name):
    method = method_of(name)
    pool = fitting(method)
    turned = StatePool(pool.base, dict(reversed(pool.experts.items())))
    first, second = models(method.apply(pool)), models(method.apply(turned))
    for key in first:
        for tensor in first[key]:
            torch.testing.assert_close(first[key][tensor], second[key][tensor], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", sorted(set(NAMES) - OTHER_DEPTH - {"weight_pruning"}))
def test_experts_equal_to_the_base_give_the_base(name):
    method = method_of(name)
    pool = fitting(method)
    same = StatePool(pool.base, dict.fromkeys(pool.experts, pool.base))
    for model in models(method.apply(same)).values():
        for tensor in model:
            wanted = pool.base[tensor]
            if name == "task_negation" or wanted.is_floating_point():
                torch.testing.assert_close(model[tensor], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["simple_average", "weighted_average", "slerp", "nuslerp", "multislerp", "karcher", "cart"]
)
def test_equal_experts_give_that_expert(name):
    method = method_of(name)
    pool = fitting(method)
    expert = pool.experts["task0"]
    merged = method.apply(StatePool(pool.base, dict.fromkeys(pool.experts, expert)))
    for tensor in merged:
        if expert[tensor].is_floating_point():
            torch.testing.assert_close(merged[tensor], expert[tensor], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(set(NAMES) - NOT_HOMOGENEOUS - {"awd"}))
def test_scaling_base_and_experts_scales_the_merge(name):
    method = method_of(name)
    pool = fitting(method)
    times = lambda state: {n: t * 4 if t.is_floating_point() else t for n, t in state.items()}  # noqa: E731
    scaled = StatePool(times(pool.base), {key: times(state) for key, state in pool.experts.items()})
    plain, large = models(method.apply(pool)), models(method.apply(scaled))
    for key, model in plain.items():
        for tensor in model:
            if model[tensor].is_floating_point():
                torch.testing.assert_close(large[key][tensor], 4 * model[tensor], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_stays_and_sixteen_bits_are_rounded_once(name, dtype):
    method = method_of(name)
    low = fitting(method)
    cast = lambda state, to: {n: t.to(to) if t.is_floating_point() else t for n, t in state.items()}  # noqa: E731
    narrow = StatePool(cast(low.base, dtype), {key: cast(state, dtype) for key, state in low.experts.items()})
    wide = StatePool(
        cast(narrow.base, torch.float32 if dtype == torch.bfloat16 else dtype),
        {
            key: cast(state, torch.float32 if dtype == torch.bfloat16 else dtype)
            for key, state in narrow.experts.items()
        },
    )
    got, wanted = models(method.apply(narrow)), models(method.apply(wide))
    for key, model in got.items():
        for tensor in model:
            if model[tensor].is_floating_point():
                assert model[tensor].dtype == dtype
                assert torch.equal(model[tensor], wanted[key][tensor].to(dtype)), tensor


@given(density=st.floats(0.01, 1.0), seed=st.integers(0, 50), how=st.sampled_from(["mean", "sum", "max"]))
@settings(max_examples=25, deadline=None)
def test_ties_entries_have_the_sign_of_some_expert_and_its_size_at_most(density, seed, how):
    from fusion_eval.method.ties import Ties

    pool = pool_of(3, seed=seed + 1)
    merged = Ties(density, 1.0, how).apply(pool)
    name = "layers.0.linear.weight"
    deltas = torch.stack([state[name] - pool.base[name] for state in pool.experts.values()])
    change = merged[name] - pool.base[name]
    bound = deltas.abs().sum(0) if how == "sum" else deltas.abs().max(0).values
    assert (change.abs() <= bound + 1e-5).all()


def test_empty_tensors_and_scalars_pass_through_every_method():
    for name in NAMES:
        method = method_of(name)
        extra = {"scale": torch.tensor(2.0), "empty": torch.zeros(0, 3)}
        pool = fitting(method)
        wide = StatePool(pool.base | extra, {key: state | extra for key, state in pool.experts.items()})
        for model in models(method.apply(wide)).values():
            assert model["empty"].shape == (0, 3), name
            torch.testing.assert_close(model["scale"], torch.tensor(2.0), msg=name)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"model_recombination"}))
def test_what_is_not_finite_in_one_expert_is_an_error_that_names_it(name, value):
    method = method_of(name)
    pool = fitting(method)
    tensor, owner = "layers.0.linear.weight", "task0"
    broken = pool.experts[owner][tensor].clone()
    broken[0, 0] = value
    pool.experts[owner] = pool.experts[owner] | {tensor: broken}
    if name in {"passthrough", "depth_upscaling", "layer_stack", "weight_pruning"} and value == float("inf"):
        return  # the only model that is read: all models share it

    def read():
        return [model[tensor] for key, model in models(method.apply(pool)).items() if key in ("", owner)]

    with pytest.raises(MethodError, match=rf"tensor '{tensor}': .*{owner}"):
        read()


def test_infinities_may_be_allowed():
    pool = pool_of(3)
    broken = pool.experts["task0"]["head.weight"].clone()
    broken[0, 0] = float("inf")
    pool.experts["task0"] = pool.experts["task0"] | {"head.weight": broken}
    config = OmegaConf.load(FILES[NAMES.index("task_arithmetic")])
    config.tensors.nonfinite = "keep"
    merged = instantiate(config).apply(pool)
    assert torch.isinf(merged["head.weight"][0, 0])
    assert "task0" in merged.notes["head.weight"]


def test_state_dict_helper_is_seeded():
    assert torch.equal(state_dict(1)["head.weight"], state_dict(1)["head.weight"])
