"""Steps that minimise an objective by gradient descent: no data, only the task vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusion_eval.merge.steps_spectral import leading_svd, svd, total


@dataclass(frozen=True, slots=True)
class DualOptions:
    """How `between` descends.

    Args:
        lr: Adam's learning rate.
        steps: its steps.
        alpha: the first matrix's weight at the start.
        ema: how much of a weight stays at each step.
        energy: protected directions are those before the singular values' cumulated share reaches this.
    """

    lr: float = 1e-4
    steps: int = 200
    alpha: float = 0.8
    ema: float = 0.999
    energy: float = 0.99999


_BETAS, _EPS = (0.9, 0.999), 1e-8


def adam(start: Tensor, gradient: Callable[[Tensor], Tensor], lr: float, steps: int) -> Tensor:
    """Where Adam arrives after some steps from a start (Kingma and Ba, arXiv:1412.6980)."""
    x = start.clone()
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, steps + 1):
        g = gradient(x)
        first.mul_(_BETAS[0]).add_(g, alpha=1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(g, g, value=1 - _BETAS[1])
        spread = second.sqrt().div_((1 - _BETAS[1] ** step) ** 0.5).add_(_EPS)
        x.addcdiv_(first, spread, value=-lr / (1 - _BETAS[0] ** step))
    return x


def least_interference(matrices: Sequence[Tensor], lr: float, steps: int) -> Tensor:
    """The task vector that interferes least with each task's inputs (WUDI-Merging, arXiv:2503.08099, eq. 10).

    Adam on sum_t |(T - tau_t) tau_t^T|^2 / |tau_t|^2 from T = sum_t tau_t. The gradient is 2 (T H - C) with
    H = sum tau_t^T tau_t / |tau_t|^2 and C = sum tau_t tau_t^T tau_t / |tau_t|^2, so a step is one product.
    """
    start = total([matrix.double() for matrix in matrices])
    H, C = start.new_zeros(start.shape[1], start.shape[1]), torch.zeros_like(start)
    for matrix in (matrix.double() for matrix in matrices):
        square = matrix.square().sum()
        if square > 0:
            own = matrix.mT @ matrix / square
            H += own
            C += matrix @ own
    return adam(start, lambda T: 2 * (T @ H - C), lr, steps)


def shared_subspace(matrices: Sequence[Tensor], parts: int) -> Tensor:
    """The leading floor(r / parts) left directions of all tasks' leading floor(r / N) ones (DOGE, arXiv:2501.01230)."""
    rank = min(matrices[0].shape)
    own = max(1, rank // len(matrices))
    leading = torch.cat([leading_svd(matrix, own).U for matrix in matrices], 1)
    return svd(leading).U[:, : max(1, rank // parts)]


def conflict_removing(matrices: Sequence[Tensor], scales: Sequence[float], parts: int, lr: float, steps: int) -> Tensor:
    """The change that lowers the task vectors' conflict outside of the shared subspace (DOGE, arXiv:2501.01230).

    Adam on sum_j |rowsum(tau_j * (tau_j - sum_t s_t (tau_t + Delta)))|^2 from Delta = 0, the gradient projected by
    I - P, P on the shared subspace.
    """
    matrices = [matrix.double() for matrix in matrices]
    basis = shared_subspace(matrices, parts)
    whole = total([matrix * scale for matrix, scale in zip(matrices, scales, strict=True)])
    gain = sum(scales)

    def gradient(delta: Tensor) -> Tensor:
        g = torch.zeros_like(delta)
        for matrix in matrices:
            rest = (matrix * (matrix - whole - gain * delta)).sum(1, keepdim=True)
            g -= 2 * gain * rest * matrix
        return g - basis @ (basis.mT @ g)

    return adam(torch.zeros_like(whole), gradient, lr, steps)


def disentangling(G: Tensor, alpha: float, steps: int, lr: float) -> Tensor:
    """Coefficients c of the redundant vector delta = sum_i c_i tau_i (AWD, arXiv:2411.18729).

    Minimises mean_{i<j} |cos(tau_i - delta, tau_j - delta)| + alpha |delta| (eq. 9 to 11), by Adam from c = 0, over the
    span of the task vectors, where every gradient lies: only their Gram matrix G is needed.
    """
    count = len(G)
    mean_norm = G.diagonal().clamp(min=0).sqrt().mean()
    if count < 2 or mean_norm == 0:
        return torch.zeros(count, dtype=G.dtype)
    G, alpha = G / mean_norm**2, alpha * float(mean_norm)  # only numbers near 1 are handled
    rows, columns = torch.triu_indices(count, count, 1).unbind()
    eye = torch.eye(count, dtype=G.dtype)

    def gradient(c: Tensor) -> Tensor:
        with torch.enable_grad():
            c = c.detach().requires_grad_()
            rest = eye - c
            inner = rest @ G @ rest.T
            norms = inner.diagonal().clamp(min=1e-12).sqrt()
            cosines = inner / norms[:, None] / norms[None, :]
            loss = cosines[rows, columns].abs().mean() + alpha * (c @ G @ c + 1e-12).sqrt()
            return torch.autograd.grad(loss, c)[0]

    return adam(torch.zeros(count, dtype=G.dtype), gradient, lr, steps)


def between(first: Tensor, second: Tensor, options: DualOptions) -> Tensor:
    """A matrix that changes neither of two task vectors in the directions they use (DOP, NeurIPS 2025).

    Adam from their average on w_1 l_1 + w_2 l_2, l_i = |S_i U_i^T (T - tau_i)|^2 + |(T - tau_i) V_i^T S_i|^2. The
    weights follow the least-norm combination of the gradients of log l_i (MGDA) by an exponential mean.
    """
    first, second = first.double(), second.double()
    sides = [_sides(matrix, options.energy) for matrix in (first, second)]
    weight = options.alpha

    def gradient(T: Tensor) -> Tensor:
        nonlocal weight
        gradients, logs = [], []
        for matrix, (left, right) in zip((first, second), sides, strict=True):
            off = T - matrix
            half = left @ off + off @ right
            loss = (off * half).sum()
            gradients.append(2 * half)
            logs.append(2 * half / loss if loss > 0 else half)
        weight = options.ema * weight + (1 - options.ema) * least_norm_weight(logs[0], logs[1])
        return weight * gradients[0] + (1 - weight) * gradients[1]

    return adam((first + second) / 2, gradient, options.lr, options.steps)


def _sides(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor]:
    """U S^2 U^T and V^T S^2 V over the directions before the singular values' cumulated share reaches `energy`.

    As the authors cut them; one direction stays at least, without which nothing would be protected.
    """
    parts = svd(matrix)
    U, S, V = parts.first(max(1, int((parts.S.cumsum(0) < energy * parts.S.sum()).sum())))
    squares = S.square()
    return (U * squares) @ U.mT, (V.mT * squares) @ V


def least_norm_weight(first: Tensor, second: Tensor) -> float:
    """The w in [0, 1] for which w first + (1 - w) second is shortest (MGDA for two tasks)."""
    off = first - second
    square = float(off.square().sum())
    return min(1.0, max(0.0, float((-off * second).sum()) / square)) if square > 0 else 0.5
