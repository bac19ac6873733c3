from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import AlignmentError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.vocabulary import Permuted

MODEL = StateDictCheckpoint(
    {"embed": torch.arange(12.0).reshape(4, 3), "head": torch.arange(8.0).reshape(2, 4), "n": torch.ones(4)}
)
ORDER = torch.tensor([3, -1, 0, 0, -1])


def test_entries_move_along_their_axis() -> None:
    moved = Permuted(MODEL, ORDER, {"embed": 0, "head": 1})
    assert moved.spec("embed").shape == (5, 3)
    assert moved.spec("head").shape == (2, 5)
    assert torch.equal(moved["embed"][[0, 2, 3]], MODEL["embed"][[3, 0, 0]])
    assert torch.equal(moved["embed"][[1, 4]], torch.zeros(2, 3))
    assert torch.equal(moved["head"][:, 0], MODEL["head"][:, 3])
    assert torch.equal(moved["n"], MODEL["n"])
    assert torch.equal(MODEL["embed"], torch.arange(12.0).reshape(4, 3))


def test_missing_tokens_are_filled() -> None:
    moved = Permuted(MODEL, ORDER, {"embed": 0}, lambda name: torch.tensor([[7.0] * 3, [8.0] * 3]))
    assert torch.equal(moved["embed"][[1, 4], 0], torch.tensor([7.0, 8.0]))


def test_tensors_that_do_not_fit() -> None:
    with pytest.raises(AlignmentError) as caught:
        Permuted(MODEL, ORDER, {"ghost": 0, "embed": 1, "n": 2})
    assert "no tensor 'ghost'" in str(caught.value)
    assert "shape (4, 3) with the vocabulary at axis 1; expected at least 4" in str(caught.value)
    assert "axis 2" in str(caught.value)


class Named(StateDictCheckpoint):
    """A state that is known by a key."""

    def key(self) -> str | None:
        return "named"


def test_keys_tell_orders_and_fills_apart() -> None:
    model = Named(dict(MODEL))
    fill = lambda name: torch.ones(2, 3)  # noqa: E731
    assert Permuted(model, ORDER, {"embed": 0}, fill).key() is None
    keys = [
        Permuted(model, ORDER, {"embed": 0}).key(),
        Permuted(model, ORDER, {"embed": 0}, fill, "ones").key(),
        Permuted(model, ORDER, {"embed": 0}, fill, "twos").key(),
        Permuted(model, ORDER.flip(0), {"embed": 0}, fill, "ones").key(),
    ]
    assert None not in keys
    assert len(set(keys)) == 4
    assert Permuted(model, ORDER, {"embed": 0}, fill, "ones").key() == keys[1]
