"""Exact order statistics of vectors that come in pieces: no flat vector, no sort."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusion_eval.merge.steps_sparsify import kept_count

Passes = Callable[[], Iterable[Sequence[Tensor]]]
"""Yields, piece by piece, one piece of every vector; called once per pass, always with the same values."""

_BITS = 16
_BINS = 1 << _BITS


def magnitude_thresholds(passes: Passes, densities: Sequence[float], numel: int) -> list[float]:
    """For each vector, the k-th largest magnitude with k = max(1, floor(density numel)); 0 where all are kept."""
    ranks = [[kept_count(density, numel)] for density in densities]
    wanted = [[rank for rank in row if 0 < rank < numel] for row in ranks]
    found = streamed_largest(passes, wanted, magnitudes=True)
    thresholds = []
    for (rank,), values in zip(ranks, found, strict=True):
        thresholds.append(values[0] if values else 0.0 if rank else float("inf"))
    return thresholds


def streamed_largest(passes: Passes, ranks: Sequence[Sequence[int]], *, magnitudes: bool = False) -> list[list[float]]:
    """For each vector, its values of the given ranks, 1 being the largest.

    Radix selection: the bits of a float order as its value does, so each pass counts the next sixteen bits among the
    entries that share the bits found so far. Two passes for float32, four for float64; 512 KiB a rank.

    Args:
        passes: the vectors in pieces.
        ranks: for each vector, the ranks that are wanted; none is fine.
        magnitudes: rank absolute values.
    """
    if not any(ranks):
        return [[] for _ in ranks]
    width = 32
    while True:
        targets = [_Target(row, rank) for row, wanted in enumerate(ranks) for rank in wanted]
        try:
            for shift in range(width - _BITS, -1, -_BITS):
                _narrow(passes(), targets, shift, width, magnitudes)
        except _WiderError:
            width = 64
            continue
        break
    found: list[list[float]] = [[] for _ in ranks]
    for target in targets:
        found[target.row].append(_value(target.prefix, width, magnitudes))
    return found


class _WiderError(Exception):
    """A float64 piece among float32 ones."""


@dataclass(slots=True)
class _Target:
    """A rank sought in a vector: the bits of its value found so far, and its rank among the entries that share them."""

    row: int
    rank: int
    prefix: int = 0


def _narrow(
    pieces: Iterable[Sequence[Tensor]], targets: list[_Target], shift: int, width: int, magnitudes: bool
) -> None:
    """Find the next sixteen bits of each target."""
    counts = [torch.zeros(_BINS, dtype=torch.int64) for _ in targets]
    for tensors in pieces:
        keys = {row: _keys(tensors[row], width, magnitudes) for row in {target.row for target in targets}}
        for count, target in zip(counts, targets, strict=True):
            count += _histogram(keys[target.row], target.prefix, shift, width)
    for count, target in zip(counts, targets, strict=True):
        above = count.flip(0).cumsum(0)
        place = min(int(torch.searchsorted(above, target.rank)), _BINS - 1)
        target.rank -= int(above[place - 1]) if place > 0 else 0
        target.prefix = target.prefix << _BITS | (_BINS - 1 - place)


def _keys(piece: Tensor, width: int, magnitudes: bool) -> Tensor:
    """Integers that order as the values do, flat; non-negative for magnitudes, else signed."""
    values = piece.reshape(-1)
    if values.dtype == torch.float64 and width == 32:
        raise _WiderError
    values = values.double() if width == 64 else values.float()
    integer = torch.int64 if width == 64 else torch.int32
    if magnitudes:
        return values.abs().view(integer)
    bits = (values + 0.0).view(integer)  # -0.0 becomes 0.0
    return bits ^ ((bits >> (width - 1)) & torch.iinfo(integer).max)


def _histogram(keys: Tensor, prefix: int, shift: int, width: int) -> Tensor:
    """How often each value of the sixteen bits at `shift` occurs among the keys that begin with a prefix."""
    top = shift + _BITS == width
    if not top:
        low = prefix - (1 << (width - shift - _BITS - 1))
        keys = keys[(keys >> (shift + _BITS)) == low]
    digits = (keys >> shift) + (_BINS >> 1) if top else (keys >> shift) & (_BINS - 1)
    return torch.bincount(digits, minlength=_BINS).cpu()


def _value(prefix: int, width: int, magnitudes: bool) -> float:
    """The float whose key has these bits."""
    integer, floating = (torch.int64, torch.float64) if width == 64 else (torch.int32, torch.float32)
    key = torch.tensor(prefix - (1 << (width - 1)), dtype=integer)
    bits = key if magnitudes else key ^ ((key >> (width - 1)) & torch.iinfo(integer).max)
    return float(bits.view(floating))
