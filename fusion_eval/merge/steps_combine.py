"""Steps that make one task vector (or tensor) of several, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import hardshrink, softshrink

_TINY = 1e-8
_SMALLEST = float(torch.finfo(torch.float32).tiny)


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float], *, normalize: bool = False) -> Tensor:
    """sum_t w_t x_t, divided by sum_t w_t when `normalize` (weighted averages; task arithmetic, arXiv:2212.04089)."""
    done = 2 if len(tensors) > 1 and weights[0] == 1 else 1
    total = tensors[0] * weights[0] if done == 1 else tensors[0].add(tensors[1], alpha=weights[1])
    for tensor, weight in zip(tensors[done:], weights[done:], strict=True):
        total.add_(tensor, alpha=weight)
    divisor = sum(weights)
    return total.div_(divisor) if normalize and abs(divisor) >= _TINY else total


def elected_sign(deltas: Sequence[Tensor]) -> Tensor:
    """+1 where the sum of the task vectors is at least 0, else -1 (TIES-Merging, arXiv:2306.01708, elect step)."""
    total = deltas[0] + deltas[1] if len(deltas) > 1 else deltas[0].clone()
    for delta in deltas[2:]:
        total.add_(delta)
    return total.add_(_SMALLEST).sign_()  # the smallest normal number makes 0 positive


def disjoint_merge(deltas: Sequence[Tensor], weights: Sequence[float], how: str = "mean") -> Tensor:
    """The merge of the entries that agree with the elected sign (TIES-Merging, arXiv:2306.01708).

    With v_t = w_t delta_t and A = {t: sgn v_t = s}: mean sum_A v_t / sum_A w_t; sum sum_A v_t; max s max_A |v_t|.
    """
    votes = [delta if weight == 1 else delta * weight for delta, weight in zip(deltas, weights, strict=True)]
    sign = elected_sign(votes)
    total, share = torch.zeros_like(sign), torch.zeros_like(sign)
    for vote, weight in zip(votes, weights, strict=True):
        agreeing = (vote * sign).clamp_(min=0)
        if how == "max":
            torch.maximum(total, agreeing, out=total)
            continue
        total.add_(agreeing)
        if how == "mean":
            share.add_(agreeing.sign_(), alpha=weight)
    total.mul_(sign)
    return _divided(total, share, weights) if how == "mean" else total


def _divided(total: Tensor, share: Tensor, weights: Sequence[float]) -> Tensor:
    """total / share, and total (which is 0) where the share is 0; in place."""
    if min(weights) >= 0:
        return total.div_(share.clamp_(min=_SMALLEST))
    return total.div_(share.add_(share == 0))


def largest_magnitude(deltas: Sequence[Tensor]) -> Tensor:
    """Per entry the task vector of largest magnitude, a later one on ties (MagMax, arXiv:2407.06322)."""
    best = deltas[0]
    for delta in deltas[1:]:
        best = torch.where((delta.abs() >= best.abs()) | delta.isnan(), delta, best)  # a NaN is never lost
    return best


def kept_mean(deltas: Sequence[Tensor]) -> Tensor:
    """sum_t delta_t / (number of non-zero entries): the average where masks overlap.

    The stitching step of Localize-and-Stitch (arXiv:2408.13656): masks are divided by how many of them are on.
    """
    total = deltas[0].clone()
    count = deltas[0].sign().abs_()
    for delta in deltas[1:]:
        total.add_(delta)
        count.add_(delta.sign().abs_())
    return total.div_(count.clamp_(min=1))


def agreeing_mean(deltas: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_t w_t m_t delta_t / sum_t w_t m_t, m_t: delta_t has the sum's sign (SCE, arXiv:2408.07990, erase)."""
    sign = elected_sign(deltas)
    total, share = torch.zeros_like(sign), torch.zeros_like(sign)
    for delta, weight in zip(deltas, weights, strict=True):
        agreeing = (delta * sign).clamp_(min=0)
        total.add_(agreeing, alpha=weight)
        share.add_(agreeing.sign_(), alpha=weight)
    return _divided(total.mul_(sign), share, weights)


def active(delta: Tensor, epsilon: float) -> Tensor:
    """Where a task vector changes a weight at all: |delta| > epsilon."""
    return delta.abs() > epsilon


def unique_and_shared(deltas: Sequence[Tensor], epsilon: float, gains: Sequence[float]) -> Tensor:
    """g_t delta_t where only expert t is active; the mean of the active ones where several are (RAM, arXiv:2601.13572).

    RAM has all gains 1; RAM+ amplifies the unique part of an expert by how much of it overlaps with others.
    """
    changes = [hardshrink(delta, epsilon) for delta in deltas]
    count = torch.zeros_like(deltas[0])
    for change in changes:
        count.add_(change.sign().abs_())
    unique = (2 - count).clamp_(0, 1)
    part = count.clamp_(min=1).reciprocal_()
    total = torch.zeros_like(part)
    for change, gain in zip(changes, gains, strict=True):
        total.addcmul_(change, part if gain == 1 else part.add(unique, alpha=gain - 1))
    return total


def limited(delta: Tensor, t: float) -> Tensor:
    """clamp(t / |delta|, 0, 1) delta, that is delta less what passes t in magnitude (nearswap); inf is no number."""
    return delta - softshrink(delta, t)


def importance(base: Tensor, other: Tensor) -> Tensor:
    """|b - a| KL(p || q) with p, q the softmax of each row of b and a (Arcee Fusion)."""
    p, q = torch.softmax(other, -1) + 1e-8, torch.softmax(base, -1) + 1e-8
    return (other - base).abs() * (p * torch.log(p / q)).sum(-1, keepdim=True)


def consensus(deltas: Sequence[Tensor], merged: Tensor, threshold: float, least: float) -> Tensor:
    """Where at least `least` experts have |tau_t| > threshold |tau - tau_t| (Consensus, arXiv:2405.07813, eq. 4)."""
    votes = torch.zeros_like(merged)
    for delta in deltas:
        votes.add_(localized(delta, merged, threshold))
    return votes >= least


def localized(delta: Tensor, merged: Tensor, threshold: float) -> Tensor:
    """A task's mask m_t = [|tau_t| > threshold |tau - tau_t|] (TALL masks, arXiv:2405.07813, eq. 3)."""
    return delta.abs() > threshold * (merged - delta).abs()


def unified(deltas: Sequence[Tensor]) -> Tensor:
    """sgn(sum_t tau_t) max |tau_t| over the entries of that sign (EMR-Merging, arXiv:2405.17461, elect)."""
    total = sum(deltas[1:], deltas[0])
    sign = (total > 0).to(total.dtype).mul_(2).sub_(1)
    best = torch.zeros_like(sign)
    for delta in deltas:
        best = torch.maximum(best, delta * sign)
    return best * sign


def balance(delta: Tensor, total: Tensor, bounds: tuple[float, float], count: int) -> Tensor:
    """exp(N n(|tau_t|)^2) tanh(tau_t sum_j tau_j), n to [0, 1] between bounds (PCB-Merging, arXiv:2410.02396).

    Intra-balancing times inter-balancing as the authors compute them.
    """
    return torch.exp(count * normalized(delta.abs(), bounds).square()) * torch.tanh(delta * total)


def normalized(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    """(clamp(x, low, high) - low) / (high - low); 0 where the bounds coincide."""
    low, high = bounds
    if high <= low:
        return torch.zeros_like(values)
    return (values.clamp(low, high) - low) / (high - low)


def balanced_mean(deltas: Sequence[Tensor], scores: Sequence[Tensor]) -> Tensor:
    """sum_t b_t tau_t / sum_t b_t (PCB-Merging, arXiv:2410.02396, eq. 6)."""
    total, share = torch.zeros_like(deltas[0]), torch.zeros_like(deltas[0])
    for delta, score in zip(deltas, scores, strict=True):
        total.addcmul_(delta, score)
        share.add_(score)
    return total.div_(share.clamp_(min=1e-12))


def not_lost(merged: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    """The merged tensor with what is not finite in a task vector, where a step that clips would hide it."""
    for delta in deltas:
        if not bool(delta.sum().isfinite()):
            merged = torch.where(delta.isfinite(), merged, delta)
    return merged
