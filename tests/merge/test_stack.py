from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import AlignmentError, CheckpointError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.stack import LayerRange, stacked


def model(mark: float, layers: int = 4, stack: str = "model.layers") -> StateDictCheckpoint:
    state = {"model.embed_tokens.weight": torch.full((2,), mark), "model.norm.weight": torch.full((2,), mark + 0.5)}
    state |= {f"{stack}.{i}.q.weight": torch.full((1,), mark + i / 100) for i in range(layers)}
    state |= {f"{stack}.{i}.experts.0.w": torch.full((1,), mark - i / 100) for i in range(layers)}
    return StateDictCheckpoint(state | {"lm_head.weight": torch.full((2,), mark + 0.7)}, f"model {mark:g}")


def test_layers_are_renumbered_and_the_ends_are_of_the_first_and_the_last() -> None:
    first, second = model(1), model(2)
    deep = stacked([LayerRange(first, 0, 3), LayerRange(second, 1, 4), LayerRange(first, 2, 3)])
    expected = [(first, 0), (first, 1), (first, 2), (second, 1), (second, 2), (second, 3), (first, 2)]
    for new, (source, old) in enumerate(expected):
        for part in ("q.weight", "experts.0.w"):
            assert torch.equal(deep[f"model.layers.{new}.{part}"], source[f"model.layers.{old}.{part}"])
    assert len(deep) == 2 * 7 + 3
    assert float(deep["model.embed_tokens.weight"][0]) == 1
    assert float(deep["lm_head.weight"][0]) == pytest.approx(1.7)
    wide = stacked([LayerRange(first, 0, 2), LayerRange(second, 2, 4)])
    assert float(wide["model.norm.weight"][0]) == 2.5
    assert float(wide["model.embed_tokens.weight"][0]) == 1


def test_the_whole_model_is_itself() -> None:
    whole = model(1)
    same = stacked([LayerRange(whole, 0, 4)])
    assert sorted(same) == sorted(whole)
    assert all(torch.equal(same[name], whole[name]) for name in whole)


def test_stacks_without_a_name_before_them() -> None:
    state = StateDictCheckpoint({f"{i}.weight": torch.tensor(float(i)) for i in range(3)})
    assert [float(stacked([LayerRange(state, 1, 3)])[f"{i}.weight"]) for i in range(2)] == [1, 2]


def test_layers_that_are_not_there() -> None:
    with pytest.raises(CheckpointError) as caught:
        stacked([LayerRange(model(1), 0, 5), LayerRange(model(2), 3, 3)])
    assert "layers 0 to 5 of 'model.layers', which has 4" in str(caught.value)
    assert "layers 3 to 3" in str(caught.value)


def test_several_stacks_need_a_choice() -> None:
    both = StateDictCheckpoint({f"{side}.{i}.w": torch.ones(1) for side in ("encoder", "decoder") for i in range(2)})
    with pytest.raises(CheckpointError, match="Say which: stack=NAME"):
        stacked([LayerRange(both, 0, 1)])
    assert sorted(stacked([LayerRange(both, 1, 2)], stack="decoder")) == ["decoder.0.w", "encoder.0.w", "encoder.1.w"]


def test_no_tensor_outside_the_layers_is_lost() -> None:
    other = StateDictCheckpoint({**dict(model(2)), "model.extra": torch.ones(1)})
    with pytest.raises(AlignmentError, match=r"only one has: model\.extra"):
        stacked([LayerRange(model(1), 0, 1), LayerRange(other, 0, 1)])
