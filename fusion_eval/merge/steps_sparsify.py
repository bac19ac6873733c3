"""Steps that set entries of task vectors to zero, in float32 (or float64); inputs stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-7


def kept_count(density: float, numel: int) -> int:
    """How many of `numel` entries a density keeps: max(1, floor(density * numel)), and none at density 0."""
    return 0 if density <= 0 or numel == 0 else min(numel, max(1, int(density * numel)))


def magnitude_threshold(delta: Tensor, density: float) -> float:
    """The smallest magnitude among the k = max(1, floor(density n)) largest; infinity at density 0."""
    count = kept_count(density, delta.numel())
    if count == 0:
        return float("inf")
    if count == delta.numel():
        return 0.0
    magnitudes = delta.abs().reshape(-1)
    return float(magnitudes.kthvalue(delta.numel() - count + 1).values)


def trim(delta: Tensor, threshold: float) -> Tensor:
    """Entries of magnitude at least `threshold` (TIES-Merging, arXiv:2306.01708, eq. of the trim step)."""
    return delta * (delta.abs() >= threshold)


def random_keep(shape: torch.Size, density: float, generator: torch.Generator) -> tuple[Tensor, float]:
    """A Bernoulli(density) mask and the exact probability it was drawn with (density to the nearest 2**-16).

    Sixteen random bits an entry, drawn on the CPU, so the mask is the same on every device.
    """
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    level = round(density * 65536)
    keep = words.view(torch.int16)[:count] < level - 32768 if level < 65536 else torch.ones(count, dtype=torch.bool)
    return keep.reshape(shape), level / 65536


def drop(delta: Tensor, density: float, generator: torch.Generator) -> tuple[Tensor, float]:
    """Random entries of a task vector and the share that was kept in expectation (DARE, arXiv:2311.03099, step 1).

    DARE's step 2 divides by that share: E[m * delta / density] = delta.
    """
    keep, density = random_keep(delta.shape, density, generator)
    return delta * keep.to(delta.device), density


def rescale_norm(sparse: Tensor, delta: Tensor) -> Tensor:
    """A sparsified task vector with the L1 norm of the whole one: sparse * |delta|_1 / |sparse|_1."""
    before, after = delta.abs().sum(), sparse.abs().sum()
    if before < _TINY or after < _TINY:
        return sparse
    return sparse * (before / after)


def without_outliers(delta: Tensor, density: float, gamma: float) -> Tensor:
    """A task vector without its largest `gamma` and its smallest magnitudes, `density` of it kept.

    Model Breadcrumbs (arXiv:2312.06795): per tensor, of the magnitudes in ascending order keep floor(density n)
    below the floor(gamma n) largest ones. Equal magnitudes at a cut are kept in the order of their place.
    """
    numel = delta.numel()
    target, top = int(density * numel), int(gamma * numel)
    low = max(0, numel - target - top)
    order = delta.abs().reshape(-1).argsort(stable=True)
    keep = torch.zeros(numel, dtype=torch.bool, device=delta.device)
    keep[order[low : low + target]] = True
    return delta * keep.reshape(delta.shape)


def rank_probabilities(delta: Tensor, density: float, epsilon: float) -> Tensor:
    """Keep probabilities that grow with the rank of a magnitude in its row (DELLA, arXiv:2406.11617, MagPrune).

    p = density - eps + 2 eps (r - 1) / (m - 1), ranks r = 1..m of |delta| in a row of the last dimensions; a
    vector is one row, a row of one entry has p = density.
    """
    rows = delta.abs().reshape(1, -1) if delta.dim() < 2 else delta.abs().reshape(delta.shape[0], -1)
    width = rows.shape[1]
    if width == 1:
        return torch.full_like(delta, density)
    order = rows.argsort(dim=1, stable=True)
    ranks = torch.empty_like(rows)
    ladder = torch.arange(width, dtype=rows.dtype, device=rows.device)
    ranks.scatter_(1, order, ladder.expand_as(rows))
    return (density - epsilon + 2 * epsilon * ranks / (width - 1)).reshape(delta.shape)


def drop_by_rank(delta: Tensor, density: float, epsilon: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A task vector with entries dropped at random by rank, and the probabilities (DELLA, arXiv:2406.11617)."""
    probabilities = rank_probabilities(delta, density, epsilon)
    draws = torch.rand(delta.shape, generator=generator).to(delta.device)
    return delta * (draws < probabilities), probabilities


def high_variance(deltas: list[Tensor], fraction: float) -> list[Tensor]:
    """The entries whose variance across experts is among the `fraction` largest non-zero ones (SCE, arXiv:2408.07990).

    Population variance; floor(fraction * non-zero variances) positions are kept, and equal ones at the cut.
    """
    if fraction >= 1:
        return deltas
    variance = torch.stack(deltas).var(dim=0, unbiased=False)
    count = int(torch.count_nonzero(variance) * fraction)
    if count == 0:
        return [torch.zeros_like(delta) for delta in deltas]
    cut = variance.reshape(-1).kthvalue(variance.numel() - count + 1).values
    keep = variance >= cut
    return [delta * keep for delta in deltas]
