"""Stacks of layers, tensor by tensor."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import ConfigError
from fusion_eval.method.depth_upscaling import DepthUpscaling, LayerStack
from tests.method.conftest import StatePool


def deep(layers, seed):
    generator = torch.Generator().manual_seed(seed)
    names = ["embed.weight", *(f"layers.{index}.weight" for index in range(layers)), "norm.weight"]
    return {name: torch.randn(3, generator=generator) for name in names}


@pytest.fixture
def pool():
    return StatePool(None, {"a": deep(8, 1)})


def test_depth_upscaling_repeats_the_middle(pool):
    merged, model = DepthUpscaling().apply(pool), pool.experts["a"]
    order = [*range(6), *range(2, 8)]
    assert sorted(merged) == sorted(["embed.weight", "norm.weight", *(f"layers.{index}.weight" for index in range(12))])
    for new, old in enumerate(order):
        assert torch.equal(merged[f"layers.{new}.weight"], model[f"layers.{old}.weight"])
    assert torch.equal(merged["embed.weight"], model["embed.weight"])


def test_layers_of_two_models():
    pool = StatePool(None, {"a": deep(4, 1), "b": deep(4, 2)})
    merged = LayerStack([["a", 0, 3], ["b", 1, 4]]).apply(pool)
    wanted = [("a", 0), ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3)]
    for new, (model, old) in enumerate(wanted):
        assert torch.equal(merged[f"layers.{new}.weight"], pool.experts[model][f"layers.{old}.weight"])
    assert torch.equal(merged["embed.weight"], pool.experts["a"]["embed.weight"])
    assert torch.equal(merged["norm.weight"], pool.experts["b"]["norm.weight"])


def test_wrong_ranges_are_named(pool):
    with pytest.raises(ConfigError, match=r"method\.ranges\[0\].*first layer"):
        LayerStack([["a", 3, 1]])
    with pytest.raises(ConfigError, match=r"method\.drop"):
        DepthUpscaling(1.0)
    assert "no model 'A'" in str(LayerStack([["A", 0, 1]]).faults(pool)[0])
