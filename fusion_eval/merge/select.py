"""Exact order statistics of vectors that come in pieces: no flat vector, no sort of the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusion_eval.merge.group import CHUNK, TensorGroup
from fusion_eval.merge.loop import ahead

Passes = Callable[[], Iterable[Sequence[Tensor]]]
"""Yields, piece by piece, one piece of every vector; called once per pass, always with the same values."""

Values = NDArray[Any]

_BITS: Final = 16
_SAMPLED_VALUES: Final = 1 << 16
_SAMPLE_EVERY: Final = 16
_SMALL: Final = 1 << 18  # vectors up to this many entries are simply held
_SPREAD: Final = 4.0  # standard errors of a sampled quantile on either side of a bracket
_MARGIN: Final = 0.003  # and this share of the entries, since slices are not alike


@dataclass(frozen=True, slots=True)
class Sample:
    """Some pieces that stand for all of them.

    Args:
        passes: yields these pieces; not called for small vectors.
        numel: the number of entries of a whole vector.
    """

    passes: Passes
    numel: int


def streamed_largest(
    passes: Passes, ranks: Sequence[Sequence[int]], *, magnitudes: bool = False, sample: Sample | None = None
) -> list[list[float]]:
    """For each vector, its values of the given ranks, 1 being the largest; exact, in time linear in the entries.

    With a sample, one pass counts what lies above a bracket around each value and keeps what lies inside it. Where a
    bracket turns out wrong, and without a sample, it is radix selection: the bits of a float order as its value does,
    and each pass counts the next sixteen bits among the entries that share the bits found so far: two passes for
    float32, four for float64, in constant memory.

    Args:
        passes: the vectors in pieces.
        ranks: for each vector, the ranks that are wanted; none is fine.
        magnitudes: rank absolute values.
        sample: what to guess the brackets from.
    """
    wanted = sorted({(row, rank) for row, row_ranks in enumerate(ranks) for rank in row_ranks})
    found = _bracketed(passes, wanted, magnitudes, sample) if sample is not None and wanted else {}
    missing = [pair for pair in wanted if pair not in found]
    if missing:
        found |= _radix(passes, missing, magnitudes)
    return [[found[row, rank] for rank in row_ranks] for row, row_ranks in enumerate(ranks)]


def magnitude_thresholds(
    passes: Passes, densities: Sequence[float], numel: int, *, sample: Sample | None = None
) -> list[float]:
    """For each vector of `numel` entries, the k-th largest magnitude, k = max(1, floor(density numel)).

    It is 0 where all entries are kept and infinity where none is (density 0).
    """
    counts = [0 if density <= 0 or not numel else min(numel, max(1, int(density * numel))) for density in densities]
    ranks = [[count] if 0 < count < numel else [] for count in counts]
    found = streamed_largest(passes, ranks, magnitudes=True, sample=sample)
    return [values[0] if values else (0.0 if count else math.inf) for count, values in zip(counts, found, strict=True)]


def sampled_slices(group: TensorGroup) -> Iterator[TensorGroup]:
    """Slices that stand for the whole: every sixteenth, and the last."""
    last = max(0, group.numel - 1) // CHUNK
    for index, piece in enumerate(group.slices()):
        if index % _SAMPLE_EVERY == 0 or index == last:
            yield piece


@dataclass(slots=True)
class _Bracket:
    """Where a value is looked for, and what was seen of the vector so far."""

    low: float
    high: float
    above: int = 0
    inside: list[Values] = field(default_factory=list)

    def see(self, values: Values) -> None:
        above, places = values > self.high, values >= self.low
        self.above += int(np.count_nonzero(above))
        places ^= above
        kept = values[np.flatnonzero(places)]  # few places: faster than a boolean index
        if kept.size:
            self.inside.append(kept)

    def value(self, rank: int) -> float | None:
        """The value of this rank, unless it is not in the bracket."""
        if not self.inside:
            return None
        values = np.concatenate(self.inside)
        place = values.size - (rank - self.above)
        return float(np.partition(values, place)[place]) if 0 <= place < values.size else None


def _bracketed(
    passes: Passes, wanted: Sequence[tuple[int, int]], magnitudes: bool, sample: Sample
) -> dict[tuple[int, int], float]:
    """{(row, rank): value} for those whose bracket was right, in one pass and that of the sample."""
    rows = sorted({row for row, _ in wanted})
    guesses = {} if sample.numel <= _SMALL else _sorted_sample(rows, magnitudes, sample)
    brackets = {(row, rank): _bracket(guesses.get(row), rank, sample.numel) for row, rank in wanted}
    for tensors in ahead(passes()):
        for row in rows:
            values = _values(tensors[row], magnitudes)
            for (owner, _), bracket in brackets.items():
                if owner == row:
                    bracket.see(values)
    found = {(row, rank): bracket.value(rank) for (row, rank), bracket in brackets.items()}
    return {pair: value for pair, value in found.items() if value is not None}


def _sorted_sample(rows: Sequence[int], magnitudes: bool, sample: Sample) -> dict[int, Values]:
    stride = max(1, sample.numel // _SAMPLE_EVERY // _SAMPLED_VALUES)
    parts: dict[int, list[Values]] = {row: [] for row in rows}
    for tensors in ahead(sample.passes()):
        for row in rows:
            parts[row].append(_values(tensors[row], magnitudes)[::stride])
    return {row: np.sort(np.concatenate(values)) for row, values in parts.items() if values}


def _bracket(ordered: Values | None, rank: int, numel: int) -> _Bracket:
    """Around the value of a rank, as a sorted sample suggests."""
    if ordered is None or not ordered.size:
        return _Bracket(-math.inf, math.inf)
    share = 1 - rank / numel
    error = _SPREAD * math.sqrt(max(share * (1 - share), 1e-4) / ordered.size) + _MARGIN
    low, high = (round(edge * ordered.size) for edge in (share - error, share + error))
    return _Bracket(
        float(ordered[low]) if low > 0 else -math.inf,
        float(ordered[high]) if high < ordered.size else math.inf,
    )


def _values(piece: Tensor, magnitudes: bool) -> Values:
    flat = piece.detach().reshape(-1)
    flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    values: Values = (flat.abs() if magnitudes else flat).cpu().numpy()
    return values


class _WiderError(Exception):
    """A float64 piece among float32 ones."""


@dataclass(slots=True)
class _Target:
    """A rank sought in a vector: the bits of its value found so far, and its rank among the entries that share them."""

    row: int
    rank: int
    prefix: int = 0


def _radix(passes: Passes, wanted: Sequence[tuple[int, int]], magnitudes: bool) -> dict[tuple[int, int], float]:
    """{(row, rank): value} by counting sixteen bits per pass, the highest first."""
    for integer, floating, width in ((torch.int32, torch.float32, 32), (torch.int64, torch.float64, 64)):
        targets = [_Target(row, rank) for row, rank in wanted]
        try:
            for shift in range(width - _BITS, -1, -_BITS):
                _narrow(ahead(passes()), targets, shift, integer, magnitudes)
        except _WiderError:
            continue
        keys = [torch.tensor(target.prefix - (1 << (width - 1)), dtype=integer) for target in targets]
        values = [float((key if magnitudes else _folded(key)).view(floating)) for key in keys]
        return dict(zip(wanted, values, strict=True))
    raise AssertionError("float64 is the widest")


def _narrow(
    pieces: Iterable[Sequence[Tensor]], targets: list[_Target], shift: int, integer: torch.dtype, magnitudes: bool
) -> None:
    """Find the next sixteen bits of each target."""
    bins = 1 << _BITS
    counts = [np.zeros(bins, dtype=np.int64) for _ in targets]
    for tensors in pieces:
        keys = {row: _keys(tensors[row], integer, magnitudes) for row in {target.row for target in targets}}
        for count, target in zip(counts, targets, strict=True):
            part = _histogram(keys[target.row], target.prefix, shift)
            count[: part.size] += part
    for count, target in zip(counts, targets, strict=True):
        above = np.cumsum(count[::-1])
        place = min(int(np.searchsorted(above, target.rank)), bins - 1)
        target.rank -= int(above[place - 1]) if place else 0
        target.prefix = target.prefix << _BITS | (bins - 1 - place)


def _keys(piece: Tensor, integer: torch.dtype, magnitudes: bool) -> Tensor:
    """Integers that order as the values do, flat; non-negative for magnitudes."""
    values = piece.detach().reshape(-1)
    if integer == torch.int32 and values.dtype == torch.float64:
        raise _WiderError
    values = values.float() if integer == torch.int32 else values.double()
    return values.abs().view(integer) if magnitudes else _folded((values + 0.0).view(integer))  # -0.0 becomes 0.0


def _folded(keys: Tensor) -> Tensor:
    """The bits of a float as an integer of the same order, and back: negative numbers have their lower bits flipped."""
    return keys ^ ((keys >> (keys.element_size() * 8 - 1)) & torch.iinfo(keys.dtype).max)


def _histogram(keys: Tensor, prefix: int, shift: int) -> Values:
    """How often each value of the sixteen bits at `shift` occurs among the keys that begin with a prefix."""
    width, half = keys.element_size() * 8, 1 << (_BITS - 1)
    if shift + _BITS == width:
        digits = (keys >> shift) + half
    else:
        inside = (keys >> (shift + _BITS)) == prefix - (1 << (width - shift - _BITS - 1))
        digits = (keys[inside] >> shift) & ((1 << _BITS) - 1)
    counts: Values = torch.bincount(digits, minlength=1).cpu().numpy()
    return counts
