"""Steps on matrices by their singular values. A matrix A is U diag(S) V, with V the right singular vectors as rows.

Whatever the inputs' dtype, decompositions, products and results are float64, to be rounded once: the results of float32
inputs are exact to 1e-6 of their largest entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_TINY = 1e-12
_SAFE = 1e-8  # squared: where singular values reach down to 1e-4 of the largest, a Gram matrix is as good


class Svd(NamedTuple):
    """U (m, r), S (r,), V (r, n)."""

    U: Tensor
    S: Tensor
    V: Tensor

    def first(self, rank: int) -> Svd:
        """The leading `rank` directions."""
        return Svd(self.U[:, :rank], self.S[:rank], self.V[:rank])

    def present(self, largest: float | None = None) -> Svd:
        """The directions that are there: others, of a singular value that is mere rounding, are arbitrary.

        Args:
            largest: the largest singular value of what this is a part of; None: of this.
        """
        scale = largest if largest is not None else float(self.S.max()) if len(self.S) else 0.0
        least = max(self.U.shape[0], self.V.shape[1]) * torch.finfo(torch.float64).eps * scale
        return self.first(int((least < self.S).sum()))

    def matrix(self) -> Tensor:
        """U diag(S) V."""
        return (self.U * self.S) @ self.V


def svd(matrix: Tensor) -> Svd:
    """The thin decomposition, in float64."""
    return Svd(*torch.linalg.svd(matrix.double(), full_matrices=False))


def leading_svd(matrix: Tensor, rank: int) -> Svd:
    """The leading `rank` directions, from the eigenvectors of the smaller Gram matrix where that is safe; float64.

    Singular vectors found so are off by 2**-52 (s_1 / s_rank)^2 relative to their gap; where s_rank < 1e-4 s_1, that is
    where the error could pass 1e-8, and for more than half of the directions, the decomposition is computed whole.
    """
    full = min(matrix.shape)
    if not 0 < rank <= full // 2:
        return svd(matrix).first(rank)
    wide = matrix.double()
    tall = matrix.shape[0] >= matrix.shape[1]
    # torch's, not scipy's, which finds a part faster: its BLAS keeps threads of its own that get in each other's way
    values, vectors = torch.linalg.eigh(wide.mT @ wide if tall else wide @ wide.mT)
    values, near = values[-rank:].flip(0), vectors[:, -rank:].flip(1)
    if not values[-1] > _SAFE * values[0]:
        return svd(wide).first(rank)
    S = values.sqrt()
    return Svd(wide @ near / S, S, near.mT) if tall else Svd(near, S, (near.mT @ wide) / S[:, None])


def polar(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal columns (or rows): U V of its decomposition; float64.

    Directions that the matrix lacks are 0 in the result: any others in their place would be as near.
    """
    return _polar(matrix)[0]


def _polar(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """U V and S over the directions that are there, by the smaller Gram matrix G: A G^(-1/2).

    The error is 2**-52 (s_1 / s_r)^2; where that could pass 1e-8, the decomposition is computed.
    """
    wide = matrix.double()
    if 0 in wide.shape:
        return wide, wide.new_zeros(0)
    tall = wide.shape[0] >= wide.shape[1]
    G = wide.mT @ wide if tall else wide @ wide.mT
    if not _well_conditioned(G):
        U, S, V = svd(wide).present()
        return U @ V, S
    values, vectors = torch.linalg.eigh(G)
    S = values.sqrt()
    inverse = (vectors / S) @ vectors.mT
    return (wide @ inverse if tall else inverse @ wide), S


def _well_conditioned(G: Tensor) -> bool:
    """Whether the least eigenvalue passes _SAFE times the largest one, at a tenth of the cost of finding them."""
    vector = torch.arange(1, len(G) + 1, dtype=G.dtype, device=G.device).cos()  # in no likely eigenspace
    largest = vector.new_zeros(())
    for _ in range(10):
        vector = G @ vector
        largest = torch.linalg.vector_norm(vector)
        vector = vector / largest
    shifted = G.clone()
    shifted.diagonal().sub_(_SAFE * largest)
    return bool(torch.linalg.cholesky_ex(shifted).info == 0) and bool(largest > 0)


def total(matrices: Sequence[Tensor]) -> Tensor:
    """The sum of matrices."""
    return sum(matrices[1:], matrices[0])


def low_rank(matrix: Tensor, rank: int) -> Tensor:
    """The best approximation of a rank (CART, arXiv:2412.12153, eq. 5)."""
    return leading_svd(matrix, rank).matrix()


def rank_of(matrix: Tensor, share: float) -> int:
    """A share of the full rank, at least 1."""
    return max(1, int(share * min(matrix.shape)))


def task_singular_vectors(matrices: Sequence[Tensor], share: float | None = None) -> Tensor:
    """Each task's leading directions side by side, made orthogonal (TSV-M, arXiv:2412.00081, algorithm 1).

    tau_t = U_t S_t V_t cut to floor(r / N) directions (or to `share` of r), one at least; U = [U_1 ... U_N], V
    likewise; polar(U) diag(S_1 ... S_N) polar(V). Directions that a task vector lacks are left out.
    """
    full = min(matrices[0].shape)
    rank = max(1, full // len(matrices) if share is None else int(share * full))
    parts = [leading_svd(matrix, rank).present() for matrix in matrices]
    U, S, V = torch.cat([p.U for p in parts], 1), torch.cat([p.S for p in parts]), torch.cat([p.V for p in parts])
    if not len(S):
        return torch.zeros_like(matrices[0], dtype=torch.float64)
    return (polar(U) * S) @ polar(V)


def isotropic(matrix: Tensor) -> Tensor:
    """mean(S) U V: every direction that is there equally strong (Iso-C, arXiv:2502.04959, eq. 5)."""
    nearest, S = _polar(matrix)
    return S.mean() * nearest if len(S) else torch.zeros_like(nearest)


def isotropic_with_tasks(matrices: Sequence[Tensor], common_share: float) -> Tensor:
    """Common directions of the sum and task-specific ones, equally strong (Iso-CTS, arXiv:2502.04959, algorithm 1).

    c of the r directions are common, (r - c) / N are each task's own, from tau_t less its part in the common ones.
    Directions that the sum or a task lacks are left out.
    """
    count = len(matrices)
    common = svd(total(matrices))
    rank = len(common.S)
    kept = rank - round((rank - int(rank * common_share)) / count) * count
    kept = max(kept, rank % count)
    own = (rank - kept) // count
    matrices = [matrix.double() for matrix in matrices]
    common = common.first(kept).present()
    parts = [_own_directions(matrix, common.U, own) for matrix in matrices]
    parts.append(common)
    U, S, V = torch.cat([p.U for p in parts], 1), torch.cat([p.S for p in parts]), torch.cat([p.V for p in parts])
    return S.mean() * (polar(U) @ polar(V)) if len(S) else torch.zeros_like(matrices[0])


def _own_directions(matrix: Tensor, common: Tensor, rank: int) -> Svd:
    """The leading directions of what a task vector has outside of the common left ones."""
    part = leading_svd(matrix - common @ (common.mT @ matrix), rank)
    return part.present(float(torch.linalg.matrix_norm(matrix)))


def aligned(matrices: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """A basis of all task vectors' columns, and each one in it (KnOTS, arXiv:2410.19735, eq. 4).

    [tau_1 ... tau_N] = U diag(S) [V_1 ... V_N]; U is the basis, diag(S) V_t = U^T tau_t the representation, which is 0
    where tau_t is.
    """
    U = svd(torch.cat(list(matrices), 1)).U
    return U, [(U.mT @ matrix.double()).to(matrix.dtype) for matrix in matrices]


def calibrated(merged: Tensor, matrices: Sequence[Tensor], alpha: float) -> Tensor:
    """Singular values shrunk where the tasks overlap (Singular Value Calibration, arXiv:2602.05536).

    merged = U S V; a_r = u_r merged, a^t_r = u_r tau_t; s^t_r = <a_r, a^t_r> / |a^t_r|^2;
    gamma_r = N / sum_t max(alpha, s^t_r); U diag(gamma S) V.
    """
    U, S, V = svd(merged)
    along = S[:, None] * V
    share = torch.zeros_like(S)
    for matrix in matrices:
        own = U.mT @ matrix.double()
        ratio = (along * own).sum(1) / own.square().sum(1).clamp_min(_TINY)
        share += ratio.clamp(min=alpha)
    return (U * (len(matrices) / share * S)) @ V


def outside_of(previous: Tensor, delta: Tensor, alpha: float) -> Tensor:
    """A task vector less what it has in the leading directions merged so far (OPCM, arXiv:2501.09522, eq. 6).

    previous = U S V; B = U^T delta V^T; what B has on its diagonal and in [:r, :r] is taken away, r the first place at
    which the singular values' cumulated share passes alpha: delta - U B' V.
    """
    U, S, V = svd(previous)
    delta = delta.double()
    inside = U.mT @ delta @ V.mT
    removed = torch.diag(inside.diagonal())
    if S.sum() > 0:
        rank = int((S.cumsum(0) / S.sum() > alpha).to(torch.uint8).argmax())
        removed[:rank, :rank] = inside[:rank, :rank]
    return delta - U @ removed @ V


def on_directions_of(origin: Tensor, delta: Tensor, rank: int | None, part: str) -> Tensor:
    """U U^T delta V^T V over the origin's first singular directions, or over the others (from SMILE, arXiv:2408.10174).

    Args:
        origin: whose directions.
        delta: what is projected.
        rank: how many come first; None: as many as hold half of the singular values' sum.
        part: `low` for the first ones, `high` for the others.
    """
    U, S, V = svd(origin)
    if rank is None:
        rank = int((S.cumsum(0) < S.sum() / 2).sum()) + 1
    U, V = (U[:, :rank], V[:rank]) if part == "low" else (U[:, rank:], V[rank:])
    return U @ (U.mT @ delta.double() @ V.mT) @ V
