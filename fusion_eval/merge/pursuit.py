"""Vectors as combinations of a few others: orthogonal matching pursuit."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_BLOCK_BYTES: Final = 64 << 20


def matching_pursuit(atoms: Tensor, targets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """For each target the atoms that explain it best, found one after another, and their least-squares coefficients.

    Orthogonal matching pursuit; for embeddings of new tokens, arXiv:2506.06607. The next atom is the one of the largest
    inner product with what is left, long ones being preferred as there. In float64.

    Args:
        atoms: (n, d).
        targets: (t, d).
        count: how many atoms per target; no more than n and d are of use.

    Returns:
        Places of atoms (t, k) and coefficients (t, k), k = min(count, n, d).
    """
    atoms, targets = atoms.double(), targets.double()
    kept = min(count, *atoms.shape)
    size = max(1, _BLOCK_BYTES // (8 * max(1, atoms.shape[0] + kept * atoms.shape[1])))
    blocks = [_pursued(atoms, targets[start : start + size], kept) for start in range(0, len(targets), size)]
    if not blocks or not kept:
        return torch.zeros(len(targets), kept, dtype=torch.long), torch.zeros(len(targets), kept, dtype=torch.float64)
    return torch.cat([places for places, _ in blocks]), torch.cat([numbers for _, numbers in blocks])


def _pursued(atoms: Tensor, targets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    units = torch.nn.functional.normalize(atoms, dim=1)
    rows = torch.arange(len(targets))
    places = torch.zeros(len(targets), count, dtype=torch.long)
    basis = targets.new_zeros(len(targets), count, targets.shape[1])
    taken = torch.zeros(len(targets), len(atoms), dtype=torch.bool)
    rest = targets.clone()
    for step in range(count):
        places[:, step] = (rest @ atoms.T).abs().masked_fill(taken, -1).argmax(1)
        taken[rows, places[:, step]] = True
        fresh = units[places[:, step]]
        for _ in range(2):  # twice is enough for orthogonality
            fresh = fresh - torch.einsum("tkd,tk->td", basis, torch.einsum("tkd,td->tk", basis, fresh))
        length = fresh.norm(dim=1, keepdim=True)
        basis[:, step] = torch.where(length > 1e-10, fresh / length.clamp(min=1e-300), 0.0)
        rest = rest - (rest * basis[:, step]).sum(1, keepdim=True) * basis[:, step]
    chosen = atoms[places]
    return places, torch.einsum("tdk,td->tk", torch.linalg.pinv(chosen), targets)
