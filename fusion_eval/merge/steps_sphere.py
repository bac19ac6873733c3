"""Interpolation on the sphere, a tensor being one vector: all of it follows from the inner products.

Every result here is a linear combination of the tensors, whose coefficients these functions find in float64 from the
Gram matrix G_ij = <x_i, x_j>; two passes over the tensors then suffice, however many iterations a mean takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from fusion_eval.errors import Fault, MethodError

NEARLY_PARALLEL = 0.9995
_CANCELLED = 1e-6  # the length under which a mean of unit vectors, or a sine, is mere rounding
_SINE = 0.1  # how large a squared sine must be, relative to what its error stems from


def gram(tensors: Sequence[Tensor]) -> Tensor:
    """The inner products of tensors, in float64."""
    return _products([tensor.reshape(-1).double() for tensor in tensors])


def gram_parts(tensors: Sequence[Tensor]) -> Tensor:
    """The inner products, in float32's precision, of the first tensor and of the others' differences from it.

    Half the work of `gram` on slices of float32.
    """
    first = tensors[0].reshape(-1)
    return _products([first, *(tensor.reshape(-1) - first for tensor in tensors[1:])])


def gram_of_parts(P: Tensor) -> Tensor | None:
    """The Gram matrix that `gram_parts` stand for, or None where they are not precise enough for the angles.

    Errors in what tensors have in common cancel in an angle, so that small angles are as precise as large ones, unless
    the sine is small beside the differences: for tensors that differ in length only, or point away from each other.
    """
    back = torch.eye(len(P), dtype=torch.float64)
    back[1:, 0] = 1
    G, apart = back @ P @ back.T, P.diagonal().clone()
    apart[0] = 0
    squares = G.diagonal()
    sines = squares[:, None] * squares - G.square()
    wanted = _SINE * squares.max() * torch.maximum(apart[:, None], apart)
    rows, columns = torch.triu_indices(len(P), len(P), 1).unbind()
    return G if bool((sines >= wanted)[rows, columns].all()) else None


def summed(pieces: Iterable[Tensor]) -> Tensor:
    """The sum of small tensors, none of which is kept: they would hold the room between two slices' operands."""
    pieces = iter(pieces)
    total = next(pieces).clone()
    for piece in pieces:
        total += piece
    return total


def rough_gram(tensors: Sequence[Tensor]) -> Tensor:
    """The inner products of slices to float32's precision, where angles are not small."""
    return _products([tensor.reshape(-1) for tensor in tensors])


def _products(rows: Sequence[Tensor]) -> Tensor:
    count, rows = len(rows), [_in_place_for_blas(row) for row in rows]
    lower = [[float(torch.dot(first, second)) for second in rows[: i + 1]] for i, first in enumerate(rows)]
    whole = [[lower[max(i, j)][min(i, j)] for j in range(count)] for i in range(count)]
    return torch.tensor(whole, dtype=torch.float64)


def _in_place_for_blas(row: Tensor) -> Tensor:
    """A vector that begins where a cache line does: the last bits of a product may depend on it."""
    return row if row.data_ptr() % 64 == 0 else row.clone()


def slerp_coefficients(G: Tensor, t: float, parallel: float = NEARLY_PARALLEL) -> list[float]:
    """[sin((1-t) w), sin(t w)] / sin w with w the angle of the two tensors; 1-t, t where |cos w| > `parallel`.

    Shoemake, Animating rotation with quaternion curves, SIGGRAPH 1985. The tensors are not normalised.
    """
    first, second = math.sqrt(G[0, 0]), math.sqrt(G[1, 1])
    product = first * second
    cosine = max(-1.0, min(1.0, float(G[0, 1]) / product)) if product > 0 else 1.0
    if abs(cosine) > parallel or 1 - cosine * cosine <= 1e-16:
        return [1 - t, t]
    angle = math.acos(cosine)
    return [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]


def multislerp_coefficients(G: Tensor, weights: Sequence[float], eps: float = 1e-8) -> list[float]:
    """Tensors mapped to the tangent space at their mean direction, averaged there, and mapped back.

    u_i = x_i / |x_i|; m = sum w_i u_i normalised; tau = sum w_i (u_i - <u_i, m> m);
    (m cos|tau| + tau sin|tau| / |tau|) sum w_i |x_i|.

    Raises:
        MethodError: the directions of three or more tensors cancel.
    """
    w = torch.tensor(weights, dtype=torch.float64)
    if not bool(G.isfinite().all()):
        return list(weights)  # so that what is not finite stays where it is, for the engine to name its model
    norms = G.diagonal().clamp(min=0).sqrt()
    units = torch.diag(1 / (norms + eps))
    mean = w @ units
    length = _length(mean, G)
    if len(weights) == 1:
        return [float(w[0])]
    if length < max(eps, _CANCELLED):
        if len(weights) == 2 or not norms.any():
            return [float(weight) for weight in w]
        raise MethodError(Fault("method.weights", "the experts' directions cancel", do="Choose other weights."))
    mean = mean / length
    along = units @ G @ mean
    tangent = w @ (units - along[:, None] * mean)
    angle = _length(tangent, G) + eps
    result = (mean * math.cos(angle) + tangent * math.sin(angle) / angle) * (w @ norms)
    return [float(c) for c in result]


_ROUNDING: Final = 1e-6
"""Below this a tangent that no longer shrinks is the rounding of angles, whose square root is in float64."""


def karcher_coefficients(G: Tensor, max_iter: int = 10, tol: float = 1e-5) -> list[float]:
    """The mean of directions on the sphere (Karcher, 1977), times the mean norm.

    m = sum u_i normalised; then repeat tau = (1/N) sum (w_i / sin w_i)(u_i - cos w_i m), cos w_i = <m, u_i>;
    m = m cos|tau| + tau sin|tau| / |tau|; until |tau| < tol, or nothing but rounding is left of it.
    """
    count = len(G)
    norms = G.diagonal().clamp(min=0).sqrt()
    live = norms > 0
    units = torch.diag(torch.where(live, 1 / norms.where(live, torch.ones_like(norms)), 0.0))[live]
    if not len(units):
        return [1 / count] * count
    mean = units.sum(0)
    mean = mean / _length(mean, G) if _length(mean, G) > tol else units[0]
    before = math.inf
    for _ in range(max_iter):
        tangent = sum((_log_map(mean, unit, G, tol) for unit in units), torch.zeros_like(mean)) / count
        length = _length(tangent, G)
        if length < tol or (length < _ROUNDING and length >= before):
            break
        before = length
        mean = mean * math.cos(length) + tangent * math.sin(length) / length
        mean = mean / _length(mean, G)
    return [float(c) for c in mean * norms.mean()]


def _log_map(mean: Tensor, unit: Tensor, G: Tensor, tol: float) -> Tensor:
    """The tangent at `mean` that points to `unit`, as long as their angle; zero for angles under `tol`.

    It is zero for opposite points too, to which every direction leads.
    """
    cosine = max(-1.0, min(1.0, float(mean @ G @ unit)))
    angle = math.acos(cosine)
    if angle < tol or math.sin(angle) < _CANCELLED:
        return torch.zeros_like(mean)
    return (unit - cosine * mean) * (angle / math.sin(angle))


def _length(coefficients: Tensor, G: Tensor) -> float:
    return math.sqrt(max(0.0, float(coefficients @ G @ coefficients)))


def stock_ratio(G: Tensor) -> Tensor:
    """N cos / (1 + (N - 1) cos), cos the mean cosine over pairs (Model Stock, arXiv:2403.19522, eq. 5).

    For Gram matrices (..., N, N); 0 where the denominator vanishes. A zero task vector is orthogonal to the others.
    """
    count = G.shape[-1]
    norms = G.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    scale = norms.unsqueeze(-1) * norms.unsqueeze(-2)
    cosines = torch.where(scale > 0, G / scale.masked_fill(scale <= 0, 1), 0.0).clamp(-1, 1)
    rows, columns = torch.triu_indices(count, count, 1).unbind()
    cosine = cosines[..., rows, columns].mean(-1)
    divisor = 1 + (count - 1) * cosine
    return torch.where(divisor.abs() < 1e-6, 0.0, count * cosine / divisor)


def row_slerp(first: Tensor, second: Tensor, t: float, dim: int = -1) -> Tensor:
    """Slerp with one angle for every vector along `dim`; linear for parallel vectors."""
    lengths = [torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp(min=1e-7) for x in (first, second)]
    cosine = ((first / lengths[0]) * (second / lengths[1])).sum(dim, keepdim=True).clamp(-1, 1)
    parallel = 1 - cosine * cosine <= 1e-16
    angle = torch.acos(torch.where(parallel, 0.0, cosine))
    divisor = torch.where(parallel, 1.0, torch.sin(angle))
    curved = (torch.sin((1 - t) * angle) * first + torch.sin(t * angle) * second) / divisor
    return torch.where(parallel, (1 - t) * first + t * second, curved)
