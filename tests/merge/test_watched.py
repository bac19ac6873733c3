"""A watched checkpoint is the checkpoint, and shows bytes per second."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.watched import Watched, watched
from tests.merge.conftest import assert_equal, small_state


def test_everything_read_is_counted() -> None:
    state = small_state()
    seen: list[int] = []
    checkpoint = Watched(StateDictCheckpoint(state, "here"), seen.append)
    assert_equal(checkpoint, state)
    assert sum(seen) == sum(tensor.nbytes for tensor in state.values())
    assert torch.equal(torch.cat(list(checkpoint.pieces("embed.weight"))), state["embed.weight"].reshape(-1))
    assert sum(seen) == sum(tensor.nbytes for tensor in state.values()) + state["embed.weight"].nbytes
    assert (checkpoint.source, checkpoint.key(), checkpoint.working_bytes("scale")) == ("here", None, 0)


@pytest.mark.parametrize("shown", [True, False])
def test_a_bar_where_it_is_wanted(capsys: pytest.CaptureFixture[str], shown: bool) -> None:
    checkpoint = StateDictCheckpoint({"a": torch.zeros(1 << 20)})
    with watched(checkpoint, shown=shown) as found:
        dict(found)
    assert ("B/s" in capsys.readouterr().err) == shown
