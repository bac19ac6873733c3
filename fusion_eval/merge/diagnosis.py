"""Entry by entry, how the task vectors of a pool lie to each other: sums that one pass over a parameter gives.

Everything is accumulated in float64 over slices that fit the cache, so nothing but the group itself is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusion_eval.merge.group import CHUNK, TensorGroup, working

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

TOP: Final = 0.2
"""The share of entries whose part in the norm `top_share` tells: what TIES keeps by default."""

GAUSSIAN_TOP: Final = 0.6498
"""The part of the squared norm that the largest 20 % of normally distributed entries hold: 2 (z phi(z) + Q(z))."""

_BIN_BITS: Final = 16  # sign, 8 bits of exponent, 7 of mantissa: bins 1/128 wide, relatively
_BINS: Final = 0x7F80  # those of finite numbers
_LARGEST: Final = float(torch.finfo(torch.float32).max)


@dataclass(frozen=True, slots=True)
class Entrywise:
    """Sums over the entries of one parameter or of many; sums of disjoint parameters add up.

    The vectors are the experts' task vectors, or their weights in a pool without a base.

    Args:
        numel: how many entries they have.
        seen: how many of them were looked at; the sums are scaled to all.
        products: (M, M) inner products of the base, where there is one, and of the N vectors.
        opposed: (N, N) how many entries have opposite signs.
        both: (N, N) how many entries are nonzero in both.
        mass: (N,) sums of magnitudes.
        kept: the sum of magnitudes of the sum of all vectors.
    """

    numel: int
    seen: int
    products: Array
    opposed: Array
    both: Array
    mass: Array
    kept: float

    def __add__(self, other: Entrywise) -> Entrywise:
        return Entrywise(
            self.numel + other.numel,
            self.seen + other.seen,
            self.products + other.products,
            self.opposed + other.opposed,
            self.both + other.both,
            self.mass + other.mass,
            self.kept + other.kept,
        )

    @property
    def count(self) -> int:
        """The number of vectors, N."""
        return len(self.mass)

    @property
    def has_base(self) -> bool:
        """Whether the first of `products` is a base."""
        return len(self.products) > self.count

    def gram(self) -> Array:
        """(N, N) inner products of the vectors."""
        return self.products[1:, 1:] if self.has_base else self.products

    def norms(self) -> Array:
        """(N,) Euclidean norms of the vectors."""
        return np.sqrt(np.maximum(self.gram().diagonal(), 0))

    def base_norm(self) -> float:
        """The norm of the base; NaN without one."""
        return float(np.sqrt(self.products[0, 0])) if self.has_base else float("nan")

    def relative_norms(self) -> Array:
        """(N,) norms of the vectors in units of the base's; NaN without one."""
        base = self.base_norm()
        return self.norms() / base if base > 0 else np.full(self.count, np.nan)

    def cosines(self) -> Array:
        """(N, N) cosines of the vectors; NaN where one is zero."""
        return _cosines(self.gram())

    def conflicts(self) -> Array:
        """(N, N) shares, of the entries nonzero in both, with opposite signs: 0.5 by chance; NaN without any."""
        return _ratio(self.opposed, self.both)

    def changed(self) -> Array:
        """(N,) shares of the entries that are not zero."""
        found: Array = self.both.diagonal() / max(1, self.numel)
        return found

    def kinship(self) -> Array:
        """(N,) cosines between each expert's weights and the base's, or the first expert's without a base."""
        if not self.has_base:
            first: Array = self.cosines()[0]
            return first
        products = self.products
        along = products[0, 0] + products[0, 1:]
        squares = products[0, 0] + 2 * products[0, 1:] + products.diagonal()[1:]
        return _ratio(along, np.sqrt(np.maximum(products[0, 0] * squares, 0)))

    def cancelled(self) -> float:
        """1 - |sum tau|_1 / sum |tau|_1: the share of all change that a plain sum cancels; NaN without change."""
        total = float(self.mass.sum())
        return 1 - self.kept / total if total else float("nan")

    def growth(self) -> float:
        """|sum tau|^2 / sum |tau|^2: 1 for orthogonal vectors, N for equal ones, below 1 for opposed ones."""
        gram = self.gram()
        trace = float(gram.trace())
        return float(gram.sum()) / trace if trace else float("nan")


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """How many entries of each vector have which magnitude, in bins 1/128 wide; histograms add up exactly.

    Args:
        counts: (N, bins); bin b holds the float32 magnitudes whose bits begin with b.
    """

    counts: Counts

    def __add__(self, other: Magnitudes) -> Magnitudes:
        return Magnitudes(self.counts + other.counts)

    def top_share(self, share: float = TOP) -> Array:
        """(N,) the part of the squared norm that the largest `share` of the entries hold; NaN for a zero vector.

        A bin's entries count as spread evenly over it, so the result is off by at most 1.6 % of itself.
        """
        return np.array([_top_share(row, share) for row in self.counts])


def entrywise(group: TensorGroup, entries: int | None = None) -> tuple[Entrywise, Magnitudes]:
    """The sums and histograms of one parameter.

    Args:
        group: the parameter; its dtypes may differ.
        entries: look at no more than about so many entries, in evenly spaced slices; None looks at all.
    """
    count = len(group.experts)
    size = count + (group.base is not None)
    products, opposed, both = np.zeros((size, size)), np.zeros((count, count)), np.zeros((count, count))
    mass, kept, seen = np.zeros(count), 0.0, 0
    counts = np.zeros((count, _BINS), dtype=np.int64)
    for piece in chosen_slices(group, entries):
        rows = vectors(piece)
        wide = rows.double()
        products += _numpy(wide @ wide.mT)
        rows, wide = rows[size - count :], wide[size - count :]
        mass += _numpy(wide.abs().sum(1))
        kept += float(wide.sum(0).abs().sum())
        signs = rows.sign().float()  # sums of a slice's signs are exact in float32
        shared = _numpy((signs.abs() @ signs.abs().mT).double())
        both += shared
        opposed += (shared - _numpy((signs @ signs.mT).double())) / 2
        counts += _binned(rows)
        seen += piece.numel
    factor = group.numel / seen if seen else 1.0
    if factor != 1.0:
        counts = np.rint(counts * factor).astype(np.int64)
    sums = (products * factor, opposed * factor, both * factor, mass * factor)
    return Entrywise(group.numel, seen, *sums, kept * factor), Magnitudes(counts)


def chosen_slices(group: TensorGroup, entries: int | None = None) -> Iterator[TensorGroup]:
    """All slices of a parameter, or evenly spaced ones of about `entries` entries together, at least one."""
    total = max(1, -(-group.numel // CHUNK))
    wanted = total if entries is None else min(total, max(1, entries // CHUNK))
    places = {round((index + 0.5) * total / wanted - 0.5) for index in range(wanted)}
    return (piece for index, piece in enumerate(group.slices()) if index in places)


def vectors(group: TensorGroup) -> Tensor:
    """(M, n) the base, where there is one, and the task vectors; the experts' weights in a pool without a base."""
    if group.base is None:
        return torch.stack([working(expert).reshape(-1) for expert in group.experts])
    base = working(group.base).reshape(-1)
    deltas = [working(expert).reshape(-1) - base for expert in group.experts]
    return torch.stack(_one_dtype([base, *deltas]))


def equal_models(group: TensorGroup, pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those pairs of models whose tensors hold equal values; -1 is the base, other numbers are experts."""
    return {(a, b) for a, b in pairs if torch.equal(_model(group, a), _model(group, b))}


def _model(group: TensorGroup, index: int) -> Tensor:
    tensor = group.experts[index] if index >= 0 else group.base
    assert tensor is not None, "pairs with the base are asked for in pools with one"
    return working(tensor) if tensor.is_floating_point() else tensor


def _one_dtype(tensors: list[Tensor]) -> list[Tensor]:
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return [tensor.double() for tensor in tensors] if wide else tensors


def _binned(rows: Tensor) -> Counts:
    """(N, bins) the histograms of a slice."""
    if rows.dtype == torch.float64:
        rows = rows.clamp(-_LARGEST, _LARGEST).float()
    bits = rows.abs().contiguous().view(torch.int32) >> _BIN_BITS
    return np.stack([np.bincount(_numpy(row), minlength=_BINS)[:_BINS] for row in bits])


def _top_share(counts: Counts, share: float) -> float:
    edges = (np.arange(_BINS, dtype=np.uint32) << _BIN_BITS).view(np.float32).astype(np.float64)
    low, high = edges, np.append(edges[1:], _LARGEST)
    used = np.flatnonzero(counts)
    squares = (low**2 + low * high + high**2) / 3
    squares[0] = 0  # zeros, and numbers below 1e-40
    squares = squares[used][::-1]
    found = counts[used][::-1]
    energy = np.cumsum(found * squares)
    if not len(used) or not energy[-1] > 0:
        return float("nan")
    places = np.concatenate([[0], np.cumsum(found)])
    return float(np.interp(share * places[-1], places, np.concatenate([[0.0], energy])) / energy[-1])


def _cosines(gram: Array) -> Array:
    norms = np.sqrt(np.maximum(gram.diagonal(), 0))
    found: Array = np.clip(_ratio(gram, np.outer(norms, norms)), -1, 1)
    return found


def _ratio(above: Array, below: Array) -> Array:
    """above / below, NaN where below is 0."""
    found: Array = np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0)
    return found


def _numpy(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.detach().cpu().numpy()
    return found
