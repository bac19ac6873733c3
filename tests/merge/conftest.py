"""Small checkpoints for the engine's tests."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fusion_eval.merge.checkpoint import Checkpoint


def small_state(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A dozen tensors of many shapes: matrices, vectors, a scalar, an empty one, an integer buffer."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (11, 4), "head.bias": (7,), "scale": (), "empty": (0, 3)}
    shapes |= {f"layers.{index}.{part}.weight": (4, 5) for index in range(3) for part in ("q", "k")}
    state = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    state["steps"] = torch.tensor([seed, 3], dtype=torch.int64)
    state["mask"] = torch.tensor([True, False, True])
    return state


def assert_equal(checkpoint: Checkpoint, state: Mapping[str, Tensor]) -> None:
    """The same names, dtypes, shapes and bits."""
    assert sorted(checkpoint) == sorted(state)
    for name, tensor in state.items():
        spec, read = checkpoint.spec(name), checkpoint[name]
        assert (spec.shape, spec.dtype) == (tuple(tensor.shape), tensor.dtype), name
        assert read.dtype == tensor.dtype, name
        assert torch.equal(read, tensor), name
