from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fusion_eval.errors import AlignmentError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.modelpool.loading import load_into


class Network(nn.Module):
    """Tied weights, a persistent and two non-persistent buffers, batch norm, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6, bias=False)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("position_ids", torch.arange(5), persistent=False)
        self.register_buffer("inv_freq", torch.ones(3), persistent=False)
        self.register_buffer("table", torch.zeros(2))


def trained() -> Network:
    network = Network()
    with torch.no_grad():
        for tensor in [*network.parameters(), network.table, network.norm.running_mean]:
            tensor.normal_()
        network.norm.num_batches_tracked.fill_(7)
    return network


def assert_same(left: nn.Module, right: nn.Module) -> None:
    mine, other = left.state_dict(), right.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def refusal(module: nn.Module, checkpoint: object) -> str:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(AlignmentError) as caught:
        load_into(module, checkpoint)  # type: ignore[arg-type]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    return str(caught.value)


def test_every_weight_is_set_in_place_and_the_mode_is_evaluation() -> None:
    source, target = trained(), Network()
    target.conv.weight.requires_grad_(False)
    places = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
    loaded = load_into(target, StateDictCheckpoint.of(source))
    assert loaded is target
    assert not loaded.training
    assert_same(source, loaded)
    assert loaded.head.weight is loaded.embed.weight
    assert not loaded.conv.weight.requires_grad
    assert loaded.embed.weight.requires_grad
    assert {name: tensor.data_ptr() for name, tensor in target.state_dict().items()} == places


def test_the_source_is_not_aliased() -> None:
    source = trained()
    loaded = load_into(Network(), StateDictCheckpoint.of(source))
    before = source.conv.weight.clone()
    with torch.no_grad():
        loaded.conv.weight.zero_()
    assert torch.equal(source.conv.weight, before)


def test_plain_state_dict_file_and_channels_last(tmp_path: Path) -> None:
    source = trained()
    torch.save(source.state_dict(), tmp_path / "m.pt")
    skeleton = Network().to(memory_format=torch.channels_last)
    assert_same(source, load_into(skeleton, open_checkpoint(tmp_path / "m.pt")))
    assert skeleton.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert_same(source, load_into(Network(), source.state_dict()))


def test_meta_skeleton_gets_memory_and_stays_tied() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

    source = Small()
    with torch.device("meta"):
        skeleton = Small()
    skeleton.a.bias.requires_grad_(False)
    loaded = load_into(skeleton, StateDictCheckpoint.of(source))
    assert_same(source, loaded)
    assert loaded.b.weight is loaded.a.weight
    assert isinstance(loaded.a.weight, nn.Parameter)
    assert not loaded.a.bias.requires_grad


def test_meta_buffer_that_nothing_fills_is_refused() -> None:
    with torch.device("meta"):
        skeleton = Network()
    with pytest.raises(AlignmentError, match="meta device that no checkpoint holds: position_ids, inv_freq"):
        load_into(skeleton, StateDictCheckpoint.of(trained()))


def test_all_differences_are_one_error() -> None:
    state = trained().state_dict()
    del state["conv.weight"], state["table"]
    state["conv.wieght"] = torch.zeros(2)
    state["conv.bias"] = torch.zeros(9)
    state["norm.num_batches_tracked"] = torch.tensor(1.0)
    message = refusal(Network(), state)
    assert "lacks 2 of" in message
    assert "Did you mean 'conv.wieght'" in message
    assert "no place for: conv.wieght" in message
    assert "conv.bias is (9,) here and (4,) in the model" in message
    assert "another kind: norm.num_batches_tracked" in message


@pytest.mark.parametrize("present", [True, False])
def test_position_ids_are_tolerated_only_where_non_persistent(present: bool) -> None:
    state = trained().state_dict()
    if present:
        state["position_ids"] = torch.arange(3)  # another length than the module's: it recomputes them
    loaded = load_into(Network(), state)
    assert torch.equal(loaded.position_ids, torch.arange(5))
    state["other_ids"] = torch.arange(3)
    assert "no place for: other_ids" in refusal(Network(), state)


def test_missing_persistent_integer_buffer_is_refused() -> None:
    state = trained().state_dict()
    del state["norm.num_batches_tracked"]
    assert "norm.num_batches_tracked" in refusal(Network(), state)


def test_floating_transient_buffer_is_loaded_when_stored() -> None:
    state = trained().state_dict() | {"inv_freq": torch.tensor([3.0, 4.0, 5.0])}
    assert torch.equal(load_into(Network(), state).inv_freq, torch.tensor([3.0, 4.0, 5.0]))


def test_tied_names_stored_once_twice_or_with_other_values() -> None:
    state = trained().state_dict()
    once = {name: tensor for name, tensor in state.items() if name != "embed.weight"}
    assert torch.equal(load_into(Network(), once).embed.weight, state["embed.weight"])
    twice = state | {"head.weight": state["embed.weight"].clone()}
    assert torch.equal(load_into(Network(), twice).embed.weight, state["embed.weight"])
    twice["head.weight"] = twice["head.weight"] + 1
    assert "differ, but the model ties them" in refusal(Network(), twice)


def test_a_checkpoint_that_ties_what_the_module_does_not() -> None:
    source, target = trained(), Network()
    target.head.weight = nn.Parameter(torch.zeros(6, 4))
    loaded = load_into(target, StateDictCheckpoint.of(source))
    assert torch.equal(loaded.head.weight, source.embed.weight)
    assert torch.equal(loaded.embed.weight, source.embed.weight)


def test_values_take_the_dtype_of_the_skeleton() -> None:
    source = trained()
    loaded = load_into(Network().bfloat16(), StateDictCheckpoint.of(source))
    assert loaded.conv.weight.dtype == torch.bfloat16
    assert torch.equal(loaded.conv.weight, source.conv.weight.bfloat16())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_lost_or_added_name_is_refused(data: st.DataObject) -> None:
    state = trained().state_dict()
    own = [name for name in state if name not in ("embed.weight", "head.weight")]
    lost = data.draw(st.sets(st.sampled_from(own)))
    added = data.draw(st.sets(st.sampled_from(["x", "conv.weight2", "norm.ids"])))
    state = {name: tensor for name, tensor in state.items() if name not in lost} | {
        name: torch.zeros(1) for name in added
    }
    if lost or added:
        message = refusal(Network(), state)
        assert all(name in message for name in sorted(lost)[:1] + sorted(added))
    else:
        load_into(Network(), state)
