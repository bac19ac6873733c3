"""Ensembles beyond the recorded outputs: outputs with logits, and weights that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fusion_eval.errors import ConfigError
from fusion_eval.method.ensemble import Ensemble, EnsembleNetwork
from tests.method.conftest import pool_of


class Output(dict):
    """Like an output of transformers."""


class Net(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x, scale=1.0):
        return Output(logits=x * self.value * scale, loss=None)


def test_outputs_with_logits():
    found = EnsembleNetwork([Net(1.0), Net(4.0)], [0.25, 0.75])(torch.ones(2, 3), scale=2.0)
    assert isinstance(found, Output)
    assert torch.equal(found["logits"], torch.full((2, 3), 6.5))


def test_weights_that_do_not_fit():
    pool = pool_of(2)
    assert "one per expert" in str(Ensemble(weights=[1.0]).faults(pool)[0])
    assert "for task0, task1" in str(Ensemble(weights={"task0": 1.0}).faults(pool)[0])
    with pytest.raises(ConfigError, match="sum to 0"):
        Ensemble(weights=[0, 0])
    with pytest.raises(ConfigError, match=r"method.combine: 'median'; expected one of mean, max"):
        Ensemble("median")
