from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.errors import AlignmentError, CheckpointError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.views import cast, filtered, renamed, subset, with_prefix, without_prefix
from tests.merge.conftest import assert_equal, small_state


def tied() -> StateDictCheckpoint:
    return StateDictCheckpoint({"embed": torch.ones(2), "norm": torch.zeros(1)}, tied={"head": "embed", "out": "embed"})


def test_cast_rounds_floating_tensors_only() -> None:
    state = small_state()
    expected = {n: t.bfloat16() if t.is_floating_point() else t for n, t in state.items()}
    view = cast(StateDictCheckpoint(state), torch.bfloat16)
    assert_equal(view, expected)
    assert all(torch.equal(torch.cat(list(view.pieces(name))), expected[name].reshape(-1)) for name in view)


def test_renaming_by_patterns_in_order_and_by_function() -> None:
    view = renamed(StateDictCheckpoint(small_state()), {r"^layers\.(\d)": r"h.\1", r"\.weight$": ".w"})
    assert "h.2.q.w" in view
    assert len(view) == len(small_state())
    assert torch.equal(view["h.2.q.w"], small_state()["layers.2.q.weight"])
    assert "SCALE" in renamed(StateDictCheckpoint(small_state()), str.upper)


def test_renaming_that_loses_a_tensor_is_refused() -> None:
    with pytest.raises(AlignmentError, match=r"layers\.0\.q\.weight and layers\.0\.k\.weight -> layers\.0\.x\.weight"):
        renamed(StateDictCheckpoint(small_state()), {"[qk]": "x"})


def test_prefixes_there_and_back() -> None:
    state = small_state()
    there = with_prefix(StateDictCheckpoint(state), "vision.")
    assert all(name.startswith("vision.") for name in there)
    assert_equal(without_prefix(there, "vision."), state)
    with pytest.raises(CheckpointError, match="no tensor is left"):
        without_prefix(there, "text.")


def test_filters() -> None:
    view = filtered(StateDictCheckpoint(small_state()), include=[r"^layers\.", "scale"], exclude=[r"\.1\."])
    assert sorted(view) == ["layers.0.k.weight", "layers.0.q.weight", "layers.2.k.weight", "layers.2.q.weight", "scale"]


def test_tied_names_follow() -> None:
    assert dict(renamed(tied(), {"embed": "e"}).tied) == {"head": "e", "out": "e"}
    kept = filtered(tied(), include=["head|out"])
    assert list(kept) == ["head"]
    assert dict(kept.tied) == {"out": "head"}
    assert torch.equal(kept["head"], torch.ones(2))


def test_subset_keeps_the_order_and_knows_its_names() -> None:
    names = list(StateDictCheckpoint(small_state()))
    assert list(subset(StateDictCheckpoint(small_state()), reversed(names[2:5]))) == names[2:5]
    with pytest.raises(CheckpointError, match=r"no tensors emb.*Did you mean 'embed.weight'"):
        subset(StateDictCheckpoint(small_state()), ["embd.weight"])


@given(st.lists(st.sampled_from(["cast", "prefix", "rename", "filter"]), max_size=5))
def test_views_compose(steps: list[str]) -> None:
    view, state = StateDictCheckpoint(small_state()), small_state()
    for step in steps:
        if step == "cast":
            view = cast(view, torch.float16)
            state = {n: t.half() if t.is_floating_point() else t for n, t in state.items()}
        elif step == "prefix":
            view, state = with_prefix(view, "p."), {f"p.{n}": t for n, t in state.items()}
        elif step == "rename":
            view, state = renamed(view, {"layers": "l"}), {n.replace("layers", "l"): t for n, t in state.items()}
        else:
            view = filtered(view, exclude=["mask"])
            state = {n: t for n, t in state.items() if "mask" not in n}
    assert_equal(view, state)
