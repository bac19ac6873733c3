from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from fusion_eval.harness.engine import linear
from fusion_eval.harness.engine.linear import FastLinears

needs_onednn = pytest.mark.skipif(not linear.available(), reason="this build of torch has no oneDNN")


def layers() -> nn.ModuleDict:
    torch.manual_seed(0)
    gpt2: nn.Module = Conv1D(64, 48)  # type: ignore[no-untyped-call]
    return nn.ModuleDict({"linear": nn.Linear(48, 64), "bare": nn.Linear(48, 32, bias=False), "gpt2": gpt2})


@needs_onednn
@pytest.mark.parametrize("shape", [(1, 48), (3, 48), (1, 7, 48), (5, 9, 48), (400, 48)])
def test_the_products_are_those_of_the_layers(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = layers(), torch.randn(shape)
    turned = x.expand(2, *shape).transpose(0, -2)
    used: list[int] = []
    product = linear._product

    def counted(*given: Any) -> torch.Tensor:
        used.append(1)
        return product(*given)

    monkeypatch.setattr(linear, "_product", counted)
    with torch.inference_mode():
        plain = [layer(x) for layer in model.values()]
        with FastLinears(model)():
            fast = [layer(x) for layer in model.values()]
            fast_strided = [model[name](turned) for name in ("linear", "bare")]
        plain_strided = [model[name](turned) for name in ("linear", "bare")]
    assert bool(used) is (x.numel() >= 2 * 48)
    for a, b in zip([*plain, *plain_strided], [*fast, *fast_strided], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@needs_onednn
def test_layers_are_left_as_they_were_and_gradients_flow() -> None:
    model = layers()
    with FastLinears(model)():
        assert "forward" in model["linear"].__dict__
        loss = model["linear"](torch.randn(8, 48)).sum()
    loss.backward()
    assert model["linear"].weight.grad is not None
    assert not any("forward" in layer.__dict__ for layer in model.values())


def test_other_precisions_and_classes_keep_their_own_product() -> None:
    class Adapter(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + 1

    model = nn.ModuleList([nn.Linear(4, 4).bfloat16(), Adapter(4, 4)])
    assert not FastLinears(model)._pairs


def test_without_the_operator_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "available", lambda: False)
    model = layers()
    with FastLinears(model)():
        assert not any("forward" in layer.__dict__ for layer in model.values())
