from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import AlignmentError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.engine import AlignedPool, alignment_faults

A, B = torch.randn(4, 2), torch.randn(4, 2)


def text(base: dict, expert: dict) -> str:
    faults = alignment_faults(StateDictCheckpoint(base), {"e": StateDictCheckpoint(expert)})
    return "\n".join(map(str, faults))


def test_equal_layouts_have_no_faults() -> None:
    assert text({"a": A, "b": B}, {"b": A, "a": B}) == ""


def test_lost_extra_and_unequal_tensors_are_told() -> None:
    message = text({"a": A, "b": B, "c": A + 1}, {"a": A, "b": B[:2], "d": torch.ones(3)})
    assert "model 'e': lacks 1 of 3 tensors of 'base': c" in message
    assert "model 'e': has 1 tensors that 'base' lacks: d" in message
    assert "b is (4, 2) in 'base' and (2, 2) here" in message


def test_fused_and_renamed_layouts_get_a_hint() -> None:
    unfused = {f"l.{i}.{p}": torch.randn(4, 2) for i in range(9) for p in "qkv"}
    fused = {f"l.{i}.qkv": torch.randn(12, 2) for i in range(9)}
    assert text(unfused, fused).count("fused or unfused") == 2
    renamed = {name.replace("l.", "layer."): tensor for name, tensor in unfused.items()}
    assert text(unfused, renamed).count("under other names") == 2


def test_no_expert_is_dropped_when_all_faults_are_told() -> None:
    with pytest.raises(AlignmentError) as caught:
        AlignedPool(None, {n: StateDictCheckpoint(s) for n, s in (("x", {"a": A}), ("y", {}), ("z", {"b": B}))})
    assert [fault.where for fault in caught.value.faults] == ["model 'y'", "model 'z'", "model 'z'"]


@pytest.mark.parametrize("declared", [True, False])
def test_weights_that_the_base_ties_and_an_expert_stores_twice(declared: bool) -> None:
    base = StateDictCheckpoint({"embed": A}, tied={"head": "embed"} if declared else None)
    pool = AlignedPool(base, {"e": StateDictCheckpoint({"embed": B, "head": B.clone()})})
    assert torch.equal(pool.group("embed").experts[0], B)
    with pytest.raises(AlignmentError, match="head"):
        AlignedPool(base, {"e": StateDictCheckpoint({"embed": B, "head": B + 1})})


@pytest.mark.parametrize("declared", [True, False])
def test_weights_that_the_base_stores_twice_and_an_expert_ties(declared: bool) -> None:
    base = StateDictCheckpoint({"embed": A, "head": A.clone()})
    expert = StateDictCheckpoint({"embed": B}, tied={"head": "embed"} if declared else None)
    assert torch.equal(AlignedPool(base, {"e": expert}).group("head").experts[0], B)
    if not declared:
        with pytest.raises(AlignmentError, match="head"):
            AlignedPool(StateDictCheckpoint({"embed": A, "head": A + 1}), {"e": expert})


def test_thousands_of_names_that_differ_are_told_at_once() -> None:
    base = {f"a.{i}": torch.zeros(1, 1) for i in range(4000)}
    message = text(base, {f"b.{i}": torch.zeros(1, 1) for i in range(4000)})
    assert "lacks 4000 of 4000" in message


def test_complex_tensors_are_refused() -> None:
    state = StateDictCheckpoint({"w": torch.ones(3, dtype=torch.complex64)})
    (fault,) = alignment_faults(state, {"a": state})
    assert str(fault) == "model 'base': 1 complex tensors: w; expected real ones. Store real and imaginary parts apart."
