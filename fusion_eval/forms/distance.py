"""Distances between sets of images by items: the influence of each image, with its reference, on the distance.

A resample of the images would need the square root of a 2048 x 2048 matrix for FID, and all pairs of images for KID;
the first derivative by the images' weights needs them once (the infinitesimal jackknife, Efron 1982).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion_eval.forms.auroc import linear_metric
from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.item_metric import ItemMetric

_MOST_IMAGES = 20_000
_ROWS = 512
_NOTE = "tested by the influence of each image on it"


def distance_form(metric: Any, name: str, value: float, features: Floats) -> ItemMetric | None:
    """The form of FID or KID for features (N, 2, d); None for KID's spread and for very many images."""
    real, fake = features[:, 0].astype(np.float64), features[:, 1].astype(np.float64)
    if hasattr(metric, "real_features_sum"):
        return linear_metric(name, value, frechet_influence(real, fake), (f"{name}: {_NOTE}",))
    if len(real) > _MOST_IMAGES or name.endswith(("_1", "_std")):
        return None
    slopes = kernel_influence(real, fake, metric.degree, metric.gamma or 1 / real.shape[1], metric.coef)
    return linear_metric(name, value, slopes, (f"{name}: {_NOTE}",))


def frechet_influence(real: Floats, fake: Floats) -> Floats:
    """The derivative (N,) of |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)) by the weight of each pair of images.

    The square root's derivative by S1 is half the map that transports one Gaussian to the other (Dowson and Landau
    1982; Olkin and Pukelsheim 1982).
    """
    n, gap = len(real), real.mean(axis=0) - fake.mean(axis=0)
    x, y = real - real.mean(axis=0), fake - fake.mean(axis=0)
    one, two = x.T @ x / (n - 1), y.T @ y / (n - 1)
    spread = sum(
        _centred(side, np.eye(len(gap)) - _transport(mine, other))
        for side, mine, other in ((x, one, two), (y, two, one))
    )
    return np.asarray((2 * (x - y) @ gap + spread) / n)


def _transport(mine: Floats, other: Floats) -> Floats:
    """The symmetric map that carries a Gaussian of covariance `mine` to one of covariance `other`."""
    root, back = _powers(mine)
    middle, _ = _powers(root @ other @ root)
    return back @ middle @ back


def _powers(matrix: Floats) -> tuple[Floats, Floats]:
    """The square root of a covariance and its pseudo-inverse."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    kept = values > values.max(initial=0.0) * len(values) * 1e-12
    roots = np.sqrt(np.where(kept, values, 0.0))
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
    return (vectors * roots) @ vectors.T, (vectors * inverse) @ vectors.T


def _centred(side: Floats, form: Floats) -> Floats:
    values = ((side @ form) * side).sum(axis=1)
    return np.asarray(values - values.mean())


def kernel_influence(real: Floats, fake: Floats, degree: int, gamma: float, coef: float) -> Floats:
    """The derivative (N,) of the unbiased squared MMD with the kernel (gamma x.y + coef)^degree, pairs weighted."""
    n = len(real)
    mine = np.empty(n)
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        x, y = real[rows], fake[rows]
        alike = [(gamma * a @ b.T + coef) ** degree for a, b in ((x, real), (y, fake))]
        apart = [(gamma * a @ b.T + coef) ** degree for a, b in ((x, fake), (y, real))]
        own = [(gamma * (a * a).sum(axis=1) + coef) ** degree for a in (x, y)]
        within = sum((kernel.sum(axis=1) - self_) / (n - 1) for kernel, self_ in zip(alike, own, strict=True))
        mine[rows] = within - sum(kernel.mean(axis=1) for kernel in apart)
    return np.asarray(2 * (mine - mine.mean()) / n)
