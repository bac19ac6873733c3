"""Steps that make one task vector (or tensor) of several, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_TINY = 1e-8


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float], *, normalize: bool = False) -> Tensor:
    """sum_t w_t x_t, divided by sum_t w_t when `normalize` (weighted averages; task arithmetic, arXiv:2212.04089)."""
    total = tensors[0] * weights[0]
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        total.add_(tensor, alpha=weight)
    divisor = sum(weights)
    return total.div_(divisor) if normalize and abs(divisor) >= _TINY else total


def elected_sign(deltas: Sequence[Tensor]) -> Tensor:
    """+1 where the sum of the task vectors is at least 0, else -1 (TIES-Merging, arXiv:2306.01708, elect step)."""
    total = deltas[0].clone()
    for delta in deltas[1:]:
        total.add_(delta)
    return (total >= 0).to(total.dtype).mul_(2).sub_(1)


def disjoint_merge(deltas: Sequence[Tensor], weights: Sequence[float], how: str = "mean") -> Tensor:
    """The merge of the entries that agree with the elected sign (TIES-Merging, arXiv:2306.01708).

    With v_t = w_t delta_t and A = {t: sgn v_t = s}: mean sum_A v_t / sum_A w_t; sum sum_A v_t; max s max_A |v_t|.
    """
    votes = [delta if weight == 1 else delta * weight for delta, weight in zip(deltas, weights, strict=True)]
    sign = elected_sign(votes)
    if how == "max":
        best = torch.zeros_like(sign)
        for vote in votes:
            best = torch.maximum(best, vote * sign)
        return best * sign
    total, share = torch.zeros_like(sign), torch.zeros_like(sign)
    for vote, weight in zip(votes, weights, strict=True):
        agrees = vote * sign > 0
        total.add_(vote * agrees)
        if how == "mean":
            share.add_(agrees, alpha=weight)
    return total.div_(share.masked_fill_(share == 0, 1)) if how == "mean" else total


def largest_magnitude(deltas: Sequence[Tensor]) -> Tensor:
    """Per entry the task vector of largest magnitude, a later one on ties (MagMax, arXiv:2407.06322)."""
    best = deltas[0]
    for delta in deltas[1:]:
        best = torch.where(delta.abs() >= best.abs(), delta, best)
    return best


def kept_mean(deltas: Sequence[Tensor]) -> Tensor:
    """sum_t delta_t / (number of non-zero entries): the average where masks overlap.

    The stitching step of Localize-and-Stitch (arXiv:2408.13656): masks are divided by how many of them are on.
    """
    total = deltas[0].clone()
    count = (deltas[0] != 0).to(total.dtype)
    for delta in deltas[1:]:
        total.add_(delta)
        count.add_(delta != 0)
    return total.div_(count.clamp_(min=1))


def erase_and_weigh(deltas: Sequence[Tensor]) -> Tensor:
    """sum_t w_t m_t delta_t / sum_t w_t m_t, w_t = mean(delta_t^2) normalised, m_t: sign of the sum (SCE, 2408.07990).

    Equal weights where the squares vanish altogether.
    """
    sign = elected_sign(deltas)
    squares = torch.stack([delta.square().mean() for delta in deltas])
    weights = squares / squares.sum() if squares.sum() > 0 else torch.full_like(squares, 1 / len(deltas))
    total, share = torch.zeros_like(sign), torch.zeros_like(sign)
    for delta, weight in zip(deltas, weights, strict=True):
        agrees = delta * sign > 0
        total.add_(delta * agrees * weight)
        share.add_(agrees * weight)
    return total.div_(share.masked_fill_(share == 0, 1))
