"""SMILE's layers against their formula, one input at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fusion_eval.errors import ConfigError
from fusion_eval.method.smile_upscaling import SmileLinear, SmileUpscaling
from tests.method.conftest import StatePool


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.ReLU(), nn.Linear(9, 4, bias=False))


@dataclass
class NetPool(StatePool):
    def load(self, name):
        model = network(0)
        model.load_state_dict(dict(self.checkpoint(name)))
        return model.eval()


def net_pool(count):
    states = [network(seed).state_dict() for seed in range(count + 1)]
    return NetPool(states[0], {f"task{index}": state for index, state in enumerate(states[1:])})


def by_hand(pool, name, x, gate, rank, top):
    """One layer on one input."""
    base = pool.base[f"{name}.weight"]
    bias = pool.base.get(f"{name}.bias", torch.zeros(len(base)))
    logits, outputs = [], []
    for state in pool.experts.values():
        U, S, V = torch.linalg.svd(state[f"{name}.weight"] - base, full_matrices=False)
        logits.append((V[:gate] @ x).norm())
        update = U[:, :rank] @ torch.diag(S[:rank]) @ V[:rank] @ x
        outputs.append(update + state.get(f"{name}.bias", torch.zeros(len(base))) - bias)
    shares = torch.stack(logits).softmax(0)
    best = shares.topk(top).indices
    shares = torch.zeros_like(shares).scatter(0, best, shares[best] / shares[best].sum())
    return base @ x + bias + sum(share * output for share, output in zip(shares, outputs, strict=True))


@pytest.mark.parametrize(("gate", "rank", "top"), [(1, 2, 1), (2, 3, 2), (3, None, 3)])
def test_layer_is_its_formula(gate, rank, top):
    pool = net_pool(3)
    merged = SmileUpscaling(gate, rank, top).apply(pool)
    for index in ("0", "3"):
        layer = merged.get_submodule(index)
        assert isinstance(layer, SmileLinear)
        x = torch.randn(5, layer.linear.in_features)
        wanted = torch.stack([by_hand(pool, index, row, gate, rank or 99, top) for row in x])
        torch.testing.assert_close(layer(x), wanted, rtol=1e-4, atol=1e-5)


def test_one_expert_at_full_rank_is_that_expert():
    pool = net_pool(1)
    merged = SmileUpscaling(1, None, 1, {"others": "average"}).apply(pool)
    x = torch.randn(2, 7, 6)
    torch.testing.assert_close(merged(x), pool.load("task0")(x), rtol=1e-4, atol=1e-5)


def test_layers_that_are_not_selected_stay_as_the_base_or_average():
    pool = net_pool(2)
    for others in ("base", "average"):
        merged = SmileUpscaling(tensors={"exclude": "^0", "others": others}).apply(pool)
        layer = merged.get_submodule("0")
        assert type(layer) is nn.Linear
        mean = sum(state["0.weight"] for state in pool.experts.values()) / 2
        torch.testing.assert_close(layer.weight.data, pool.base["0.weight"] if others == "base" else mean)


def test_wrong_options():
    with pytest.raises(ConfigError) as error:
        SmileUpscaling(0, -1, 0)
    assert len(error.value.faults) == 3
    assert "method.top_k: 3; expected at most the pool's 2 experts" in str(
        SmileUpscaling(top_k=3).faults(net_pool(2))[0]
    )
