"""Steps that set entries of task vectors to zero, in float32 (or float64); inputs stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import hardshrink


def kept_count(density: float, numel: int) -> int:
    """How many of `numel` entries a density keeps: max(1, floor(density * numel)), and none at density 0."""
    return 0 if density <= 0 or numel == 0 else min(numel, max(1, int(density * numel)))


def trim(delta: Tensor, threshold: float) -> Tensor:
    """Entries of magnitude at least `threshold` (TIES-Merging, arXiv:2306.01708, trim step)."""
    return hardshrink(delta, _below(threshold, delta.dtype))


def trim_rows(delta: Tensor, density: float) -> Tensor:
    """Entries among the `kept_count` largest magnitudes of their row (an output's weights); a vector is one row."""
    rows = delta.reshape(delta.shape[0] if delta.dim() > 1 else 1, -1)
    width = rows.shape[1]
    count = kept_count(density, width)
    if count == width:
        return delta
    if count == 0:
        return torch.zeros_like(delta)
    magnitudes = rows.abs()
    cut = magnitudes.kthvalue(width - count + 1, dim=1, keepdim=True).values
    return (rows * (magnitudes >= cut)).reshape(delta.shape)


def trim_groups(delta: Tensor, keep: int, of: int) -> Tensor:
    """The `keep` largest magnitudes of every `of` neighbours in a row (N:M sparsity, arXiv:2104.08378)."""
    rows = delta.reshape(delta.shape[0], -1)
    width = rows.shape[1]
    padded = torch.nn.functional.pad(rows.abs(), (0, -width % of), value=-1.0)
    groups = padded.reshape(len(rows), -1, of)
    kept = torch.zeros_like(groups).scatter_(2, groups.topk(min(keep, of), 2).indices, 1.0)
    return (rows * kept.reshape(len(rows), -1)[:, :width]).reshape(delta.shape)


def band(delta: Tensor, low: float, high: float) -> Tensor:
    """Entries of magnitude from `low` to `high` (Model Breadcrumbs, arXiv:2312.06795)."""
    return trim(delta, low).sub_(hardshrink(delta, high))


def _below(value: float, dtype: torch.dtype) -> float:
    """The next smaller number of a dtype: `hardshrink` keeps what is larger, several times faster than a mask would."""
    kind = np.float64 if dtype == torch.float64 else np.float32
    return float(np.nextafter(kind(value), kind(-np.inf)))


def band_ranks(density: float, gamma: float, numel: int) -> tuple[int, int]:
    """Ranks (1 is the largest magnitude) of the largest and the smallest entry that breadcrumbs keep.

    Of n magnitudes the floor(gamma n) largest go, the next floor(density n) stay, the rest goes (arXiv:2312.06795);
    gamma yields where both do not fit, and one entry stays at least.
    """
    count, top = kept_count(density, numel), int(gamma * numel)
    first = min(top, numel - count)
    return first + 1, first + count


class RandomBits:
    """Numbers of sixteen random bits that a generator's seed determines, three times as fast as torch's.

    The stream is the same on every device and however it is taken in parts.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._source = np.random.SFC64(generator.initial_seed())
        self._rest = np.empty(0, dtype=np.uint16)

    def take(self, count: int) -> NDArray[np.uint16]:
        """The next `count` numbers."""
        missing = max(0, count - self._rest.size)
        fresh = self._source.random_raw((missing + 3) // 4).view(np.uint16)
        bits = np.concatenate([self._rest, fresh]) if self._rest.size else fresh
        self._rest = bits[count:].copy()
        return bits[:count]


def drawn_density(density: float) -> float:
    """The probability that `drop` draws with: density to the nearest 2**-16, between 0 and 1."""
    return min(max(round(density * 65536), 1), 65535) / 65536


def drop(delta: Tensor, density: float, bits: RandomBits) -> Tensor:
    """A task vector with entries kept by m ~ Bernoulli(`drawn_density`) (DARE, arXiv:2311.03099, step 1).

    DARE's step 2 divides by the density, so that E[m * delta / density] = delta. The bits are drawn on the CPU, so that
    they are the same on every device.
    """
    level = round(drawn_density(density) * 65536)
    return delta * _as_float(bits.take(delta.numel()) < level, delta)


def _as_float(mask: NDArray[np.bool_], like: Tensor) -> Tensor:
    """A mask as 0 and 1, of a tensor's shape, dtype and device; faster than multiplying with booleans."""
    return torch.from_numpy(mask.view(np.uint8)).to(like.dtype).reshape(like.shape).to(like.device)


def rank_mask(rows: Tensor, density: float, epsilon: float, bits: RandomBits) -> Tensor:
    """A mask that keeps entries with p = density - eps + 2 eps (r - 1) / (m - 1), as 0 and 1 (DELLA, arXiv:2406.11617).

    r = 1..m is the rank of an entry's magnitude in its row, equal ones sharing the highest; in a row of one entry p is
    the density. With u uniform, u < p(r) just when the magnitude is at least the row's one of the rank at which p
    passes u: rows are sorted, ranks never formed.
    """
    magnitudes, width = rows.abs().cpu(), rows.shape[1]
    draws = _uniform(rows, bits)
    if width == 1 or epsilon == 0:
        return _as_float(np.less(draws.numpy(), density), rows)
    ordered = torch.from_numpy(np.sort(magnitudes.numpy(), axis=1))
    place = draws.sub_(density - epsilon).mul_((width - 1) / (2 * epsilon)).ceil_()  # the first rank - 1 with p >= u
    cut = ordered.gather(1, place.clamp(0, width - 1).long())
    keep = np.greater_equal(magnitudes.numpy(), cut.numpy()) & np.less_equal(place.numpy(), width - 1)
    return _as_float(keep, rows)


def rank_factors(rows: Tensor, density: float, epsilon: float, bits: RandomBits) -> Tensor:
    """`rank_mask` divided by the probabilities, which keeps every entry's expectation (DELLA's rescaling)."""
    draws, width = _uniform(rows, bits), rows.shape[1]
    probability = torch.full_like(draws, density)
    if width > 1:
        ranks = torch.from_numpy(shared_ranks(rows.abs().cpu().numpy())).to(draws.dtype)
        probability = ranks.mul_(2 * epsilon / (width - 1)).add_(density - epsilon)
    keep = _as_float(np.less(draws.numpy(), probability.numpy()), rows)
    return keep.div_(probability.to(rows.dtype).to(rows.device))


def shared_ranks(magnitudes: NDArray[Any]) -> NDArray[np.int64]:
    """The rank of each entry in its row, from 0, equal ones sharing the highest."""
    width = magnitudes.shape[1]
    if magnitudes.dtype == np.float32:  # sorting the value's bits and the place together is faster than argsort
        places = np.arange(width, dtype=np.uint64)
        keys = np.sort(magnitudes.view(np.uint32).astype(np.uint64) << np.uint64(32) | places, axis=1)
        order, ordered = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64), keys >> np.uint64(32)
    else:
        order = magnitudes.argsort(axis=1)
        ordered = np.take_along_axis(magnitudes, order, 1)
    last = np.full(magnitudes.shape, width - 1, dtype=np.int64)
    np.copyto(last[:, :-1], np.arange(width - 1), where=ordered[:, :-1] != ordered[:, 1:])
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty(magnitudes.shape, dtype=np.int64)
    np.put_along_axis(ranks, order, last, 1)
    return ranks


def _uniform(rows: Tensor, bits: RandomBits) -> Tensor:
    """Numbers between 0 and 1 of sixteen random bits, float32 on the CPU."""
    return torch.from_numpy(bits.take(rows.numel()).reshape(rows.shape)).float().add_(0.5).div_(65536)


def variance(deltas: Sequence[Tensor]) -> Tensor:
    """Population variance of each entry across the experts (SCE's selection score, arXiv:2408.07990)."""
    mean = deltas[0] / len(deltas)
    for delta in deltas[1:]:
        mean.add_(delta, alpha=1 / len(deltas))
    total = torch.zeros_like(mean)
    for delta in deltas:
        off = delta - mean
        total.addcmul_(off, off)
    return total.div_(len(deltas))


def overlap(deltas: Sequence[Tensor]) -> Tensor:
    """sum_{i != j} |tau_i| |tau_j| = (sum |tau|)^2 - sum |tau|^2: the zero-shot conflict score of TATR (ICLR 2025)."""
    magnitudes = [delta.abs() for delta in deltas]
    total = sum(magnitudes[1:], magnitudes[0])
    return total.square() - sum((m.square() for m in magnitudes[1:]), magnitudes[0].square())
