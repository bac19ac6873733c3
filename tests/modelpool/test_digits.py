from __future__ import annotations

import pytest
import torch

from fusion_eval.assets.digits import DigitsDataset
from fusion_eval.errors import ConfigError
from fusion_eval.modelpool import DigitsPool


def test_the_experts_are_experts():
    pool = DigitsPool(["upright", "edges"])
    assert pool.names == ("base", "upright", "edges")
    assert pool.faults() == []
    assert pool.notes() == []
    data = DigitsDataset("edges", "test")
    logits = {name: pool.head("edges")(pool.load(name)(data.images)) for name in ("base", "edges")}
    accuracy = {name: (scores.argmax(-1) == data.labels).float().mean().item() for name, scores in logits.items()}
    assert accuracy["edges"] > 0.9
    assert accuracy["edges"] > accuracy["base"] + 0.1


def test_all_views_by_default_in_float32():
    pool = DigitsPool()
    assert len(pool.expert_names) == 8
    assert {parameter.dtype for parameter in pool.load("base").parameters()} == {torch.float32}


def test_unknown_views_are_listed():
    with pytest.raises(ConfigError, match=r"no view 'uprigt'.*Did you mean 'upright'"):
        DigitsPool(["uprigt", "nothing"])
