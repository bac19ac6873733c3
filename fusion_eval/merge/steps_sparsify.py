"""Steps that set entries of task vectors to zero, in float32 (or float64); inputs stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def kept_count(density: float, numel: int) -> int:
    """How many of `numel` entries a density keeps: max(1, floor(density * numel)), and none at density 0."""
    return 0 if density <= 0 or numel == 0 else min(numel, max(1, int(density * numel)))


def trim(delta: Tensor, threshold: float) -> Tensor:
    """Entries of magnitude at least `threshold` (TIES-Merging, arXiv:2306.01708, eq. of the trim step)."""
    return delta * (delta.abs() >= threshold)


def band(delta: Tensor, low: float, high: float) -> Tensor:
    """Entries of magnitude from `low` to `high` (Model Breadcrumbs, arXiv:2312.06795)."""
    magnitudes = delta.abs()
    return delta * ((magnitudes >= low) & (magnitudes <= high))


def band_ranks(density: float, gamma: float, numel: int) -> tuple[int, int]:
    """Ranks (1 is the largest magnitude) of the largest and the smallest entry that breadcrumbs keep.

    Of n magnitudes the floor(gamma n) largest go, the next floor(density n) stay, the rest goes (arXiv:2312.06795);
    gamma yields where both do not fit, and one entry stays at least.
    """
    count, top = kept_count(density, numel), int(gamma * numel)
    first = min(top, numel - count)
    return first + 1, first + count


def random_bits(count: int, generator: torch.Generator) -> Tensor:
    """`count` random integers of sixteen bits, from -32768: the same on every device, whatever the slices.

    Every slice but the last must have a multiple of four entries.
    """
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return words.view(torch.int16)[:count]


def drawn_density(density: float) -> float:
    """The probability that `drop` draws with: density to the nearest 2**-16, between 0 and 1."""
    return min(max(round(density * 65536), 1), 65535) / 65536


def drop(delta: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """A task vector with entries kept by m ~ Bernoulli(`drawn_density`) (DARE, arXiv:2311.03099, step 1).

    DARE's step 2 divides by the density, so that E[m * delta / density] = delta.
    """
    level = round(drawn_density(density) * 65536)
    keep = random_bits(delta.numel(), generator) < level - 32768
    return delta * keep.reshape(delta.shape).to(delta.device)


def drop_by_rank(delta: Tensor, density: float, epsilon: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A mask that keeps entries with p = density - eps + 2 eps (r - 1) / (m - 1), and p (DELLA, arXiv:2406.11617).

    r = 1..m is the rank of |delta| in its row, equal magnitudes sharing the highest; a vector is one row, a row of one
    entry has p = density. With u uniform, u < p(r) just when |delta| is at least the row's value of the rank at which p
    passes u: rows are sorted, ranks never formed.
    """
    rows = delta.abs().reshape(1, -1) if delta.dim() < 2 else delta.abs().reshape(delta.shape[0], -1)
    width = rows.shape[1]
    draws = (random_bits(rows.numel(), generator).to(torch.float32) + 32768.5) / 65536
    draws = draws.reshape(rows.shape).to(rows.device)
    if width == 1 or epsilon == 0:
        return (draws < density).reshape(delta.shape), torch.full_like(delta, density)
    ordered = torch.from_numpy(np.sort(rows.cpu().numpy(), axis=1)).to(rows.device)
    place = (draws - (density - epsilon)).mul_((width - 1) / (2 * epsilon)).ceil_()  # first rank - 1 with p >= u
    never = place > width - 1
    cut = ordered.gather(1, place.clamp_(0, width - 1).long())
    keep = (rows >= cut) & ~never
    ranks = torch.searchsorted(ordered, rows, right=True).to(rows.dtype) - 1
    probabilities = density - epsilon + 2 * epsilon * ranks / (width - 1)
    return keep.reshape(delta.shape), probabilities.reshape(delta.shape)


def variance(deltas: Sequence[Tensor]) -> Tensor:
    """Population variance of each entry across the experts (SCE's selection score, arXiv:2408.07990)."""
    mean = sum(deltas[1:], deltas[0]) / len(deltas)
    return torch.stack([(delta - mean).square_() for delta in deltas]).mean(0)


def overlap(deltas: Sequence[Tensor]) -> Tensor:
    """sum_{i != j} |tau_i| |tau_j| = (sum |tau|)^2 - sum |tau|^2: the zero-shot conflict score of TATR (ICLR 2025)."""
    magnitudes = [delta.abs() for delta in deltas]
    total = sum(magnitudes[1:], magnitudes[0])
    return total.square() - sum((m.square() for m in magnitudes[1:]), magnitudes[0].square())
