"""Exact order statistics of a whole model's magnitudes, by passes over its tensors: no flat vector, no sort."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fusion_eval.merge.steps_sparsify import kept_count

_BITS = 16
_BINS = 1 << _BITS


def streamed_thresholds(passes: Callable[[], Iterable[Sequence[Tensor]]], densities: Sequence[float]) -> list[float]:
    """For each of several vectors, the k-th largest magnitude with k = max(1, floor(density n)); 0 where all are kept.

    Radix selection: the bits of a non-negative float order as its value does, so each pass counts the next sixteen bits
    among the entries that share the bits found so far. Two passes for float32, four for float64; 512 KiB a vector.

    Args:
        passes: yields, tensor by tensor, one piece of every vector; called once per pass.
        densities: the share of each vector to keep.
    """
    width, sizes = _survey(passes())
    ranks = [kept_count(density, size) for density, size in zip(densities, sizes, strict=True)]
    prefixes = [0] * len(ranks)
    for shift in range(width - _BITS, -1, -_BITS):
        counts = torch.zeros(len(ranks), _BINS, dtype=torch.int64)
        for pieces in passes():
            for row, (piece, prefix) in enumerate(zip(pieces, prefixes, strict=True)):
                counts[row] += _histogram(piece, prefix, shift, width)
        for row, rank in enumerate(ranks):
            bin_, ranks[row] = _descend(counts[row], rank)
            prefixes[row] = prefixes[row] << _BITS | bin_
    values = torch.tensor(prefixes, dtype=torch.int32 if width == 32 else torch.int64)
    found = values.view(torch.float32 if width == 32 else torch.float64).tolist()
    return [
        0.0 if kept_count(density, size) >= size else value
        for density, size, value in zip(densities, sizes, found, strict=True)
    ]


def _survey(pieces: Iterable[Sequence[Tensor]]) -> tuple[int, list[int]]:
    """Bits of the widest dtype, and the length of each vector."""
    width, sizes = 32, []
    for tensors in pieces:
        sizes = sizes or [0] * len(tensors)
        for row, tensor in enumerate(tensors):
            sizes[row] += tensor.numel()
            width = max(width, tensor.dtype.itemsize * 8)
    return width, sizes


def _histogram(piece: Tensor, prefix: int, shift: int, width: int) -> Tensor:
    """How often each value of sixteen bits occurs among the magnitudes that begin with a prefix."""
    magnitudes = piece.abs().reshape(-1)
    if width == 64:
        bits = magnitudes.double().view(torch.int64)
    else:
        bits = magnitudes.float().view(torch.int32)
    if shift + _BITS < width:
        bits = bits[(bits >> (shift + _BITS)) == prefix]
    return torch.bincount((bits >> shift) & (_BINS - 1), minlength=_BINS).cpu()


def _descend(counts: Tensor, rank: int) -> tuple[int, int]:
    """The bin that holds the `rank`-th largest entry, and its rank within that bin."""
    above = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(above, rank))
    place = min(place, _BINS - 1)
    before = int(above[place - 1]) if place > 0 else 0
    return _BINS - 1 - place, rank - before
