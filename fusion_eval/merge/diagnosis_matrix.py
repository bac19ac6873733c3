"""Singular values and leading subspaces of the task vectors of one matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusion_eval.merge.diagnosis import Array
from fusion_eval.merge.group import CHUNK, TensorGroup, working

DIRECTIONS: Final = 8
"""How many leading singular directions of each task vector are compared."""

_PROBES: Final = 64
_FLOAT32: Final = float(torch.finfo(torch.float32).eps)


@dataclass(frozen=True, slots=True)
class MatrixTraits:
    """What the singular values and vectors of N task vectors of one matrix tell; NaN where a task vector is zero.

    Args:
        side: the smaller side, the highest rank possible.
        directions: how many leading directions `overlap` compares.
        stable: (N,) stable ranks |A|_F^2 / s_1^2.
        stable_low: (N,) the same where the matrix is whole; else a bound below which the stable rank cannot lie,
            `stable` being the bound above.
        effective: (N,) effective ranks exp(H(s_i / sum s)) (Roy and Vetterli, EUSIPCO 2007); NaN where sketched.
        rank: (N,) singular values above max(m, n) eps(float32) s_1; NaN where sketched.
        first: (N,) the part of the squared norm in the first floor(side / N) directions, which is what TSV-M keeps of
            each task; NaN where sketched.
        overlap: (N, N) |U_i^T U_j|_F^2 / k and the same of V, averaged: 1 for equal leading subspaces, 0 for
            orthogonal ones.
        chance: what `overlap` is on average for random subspaces.
        exact: whether all singular values are known, to 1e-8 s_1, from the Gram matrix in float64.
    """

    side: int
    directions: int
    stable: Array
    stable_low: Array
    effective: Array
    rank: Array
    first: Array
    overlap: Array
    chance: float
    exact: bool


class _Spectrum(NamedTuple):
    """Squared singular values, largest first, the squared norm, and leading vectors U (m, k) and V (n, k)."""

    squares: Tensor
    total: float
    U: Tensor
    V: Tensor


def matrix_traits(group: TensorGroup, exact_side: int = 1024, directions: int = DIRECTIONS) -> MatrixTraits | None:
    """The traits of a parameter seen as a matrix of its first axis by the others; None where it is no matrix.

    A matrix whose smaller side is at most `exact_side` is decomposed whole, through its smaller Gram matrix. A larger
    one is sketched: 64 random probes with one power step (Halko, Martinsson and Tropp, arXiv:0909.4061) give leading
    directions and, since |A|_F^2 - |Q^T A|_F^2 is known, two bounds of the stable rank that hold for certain.
    """
    shape = group.experts[0].shape
    rows = shape[0] if len(shape) > 1 else 0
    side = min(rows, group.numel // rows) if rows else 0
    if side < 2:
        return None
    exact, count = side <= exact_side, len(group.experts)
    k = max(1, min(directions, side // 2))
    spectra = [_exact(_delta(group, i), k) if exact else _sketched(group, i, k) for i in range(count)]
    nothing = np.full(count, np.nan)
    wide = max(rows, group.numel // rows)
    return MatrixTraits(
        side,
        k,
        np.array([_over(s.total, float(s.squares[0])) for s in spectra]),
        np.array([_over(s.total, float(s.squares[0]) + _unseen(s)) for s in spectra]),
        np.array([_effective(s) for s in spectra]) if exact else nothing,
        np.array([_rank(s, wide) for s in spectra], dtype=np.float64) if exact else nothing,
        np.array([_over(float(s.squares[: side // count].sum()), s.total) for s in spectra]) if exact else nothing,
        _overlaps(spectra, wide),
        k * (1 / rows + rows / group.numel) / 2,
        exact,
    )


def _delta(group: TensorGroup, index: int) -> Tensor:
    """One task vector as a matrix, in float32; the expert's weights in a pool without a base."""
    expert = working(group.experts[index])
    delta = expert if group.base is None else expert - working(group.base)
    return delta.reshape(delta.shape[0], -1)


def _exact(matrix: Tensor, k: int) -> _Spectrum:
    """All singular values, by the eigenvalues of the smaller Gram matrix in float64."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64)
    step = max(1, 4 * CHUNK // tall.shape[1])
    for start in range(0, tall.shape[0], step):
        block = tall[start : start + step].double()
        gram.addmm_(block.mT, block)
    values, columns = torch.linalg.eigh(gram)
    squares, right = values.flip(0).clamp_min(0), columns.flip(1)[:, :k]
    left = (tall @ right.to(tall.dtype)).double()
    left = left / left.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    U, V = (left, right) if tall is matrix else (right, left)
    return _Spectrum(squares, float(gram.trace()), U, V)


def _sketched(group: TensorGroup, index: int, k: int) -> _Spectrum:
    """Leading singular values, none larger than the true one, of a large matrix."""
    matrix = _delta(group, index)
    probes = torch.randn(matrix.shape[1], _PROBES, generator=group.generator(index), dtype=matrix.dtype)
    Q = torch.linalg.qr(matrix @ probes).Q
    Q = torch.linalg.qr(matrix.mT @ Q).Q
    Q = torch.linalg.qr(matrix @ Q).Q
    U, S, V = torch.linalg.svd((Q.mT @ matrix).double(), full_matrices=False)
    step = max(1, CHUNK // matrix.shape[1])
    total = sum(float(matrix[row : row + step].double().square().sum()) for row in range(0, matrix.shape[0], step))
    return _Spectrum(S.square(), total, (Q.double() @ U)[:, :k], V[:k].mT)


def _unseen(spectrum: _Spectrum) -> float:
    """The squared norm outside of the known directions; a whole decomposition has none."""
    rest = spectrum.total - float(spectrum.squares.sum())
    return rest if rest > 1e-9 * spectrum.total else 0.0


def _effective(spectrum: _Spectrum) -> float:
    values = spectrum.squares.sqrt()
    values = values[values > 1e-8 * values[0]]  # the Gram matrix knows no smaller ones
    if not len(values):
        return float("nan")
    shares = values / values.sum()
    return float(torch.exp(-(shares * shares.log()).sum()))


def _rank(spectrum: _Spectrum, wide: int) -> float:
    if spectrum.total == 0:
        return 0.0
    return float((spectrum.squares > (wide * _FLOAT32) ** 2 * spectrum.squares[0]).sum())


def _overlaps(spectra: list[_Spectrum], wide: int) -> Array:
    """(N, N) how far leading subspaces coincide, left and right averaged; of vectors that stand for a direction."""
    kept = [min(spectrum.U.shape[1], int(_rank(spectrum, wide))) for spectrum in spectra]
    found = np.full((len(spectra), len(spectra)), np.nan)
    for i, a in enumerate(spectra):
        for j, b in enumerate(spectra[: i + 1]):
            size = min(kept[i], kept[j])
            if size:
                left = a.U[:, : kept[i]].mT @ b.U[:, : kept[j]]
                right = a.V[:, : kept[i]].mT @ b.V[:, : kept[j]]
                found[i, j] = found[j, i] = float(left.square().sum() + right.square().sum()) / (2 * size)
    return found


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else float("nan")
