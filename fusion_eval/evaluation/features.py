"""Distances between sets of images: what is kept of an image is its features, not the image, nor their products.

The sums that torchmetrics keeps for FID hold 2048 x 2048 numbers; per image they would take 64 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusion_eval.evaluation.spill import pieces

if TYPE_CHECKING:
    from torchmetrics import Metric

FEATURES = "features:"
"""Prefix of the columns of features (items, 2, d): of the reference, of the model's image."""

_KINDS = ("FrechetInceptionDistance", "KernelInceptionDistance")


def compares_sets(metric: Metric) -> bool:
    """Whether a metric is a distance between the features of two sets of images."""
    return any(kind.__name__ in _KINDS for kind in type(metric).__mro__)


def features_of_pairs(metric: Any, preds: Tensor, target: Tensor) -> Tensor:
    """The features (items, 2, d) of references and images, as the metric's own network sees them."""
    return torch.stack([_features(metric, images) for images in (target, preds)], dim=1)


def _features(metric: Any, images: Tensor) -> Tensor:
    given = (images * 255).byte() if metric.normalize and not metric.used_custom_model else images
    found: Tensor = metric.inception(given)
    return found.reshape(len(images), -1).float().cpu()


def load_features(metric: Any, features: Tensor) -> None:
    """Put the features of all items into the metric's states."""
    for side, name in enumerate(("real", "fake")):
        if hasattr(metric, f"{name}_features"):
            setattr(metric, f"{name}_features", [features[:, side].double()])
            continue
        total = torch.zeros_like(getattr(metric, f"{name}_features_sum"), device="cpu")
        products = torch.zeros_like(getattr(metric, f"{name}_features_cov_sum"), device="cpu")
        for part in pieces(features):
            some = features[part, side].double()
            total, products = total + some.sum(0), products + some.T @ some
        setattr(metric, f"{name}_features_sum", total)
        setattr(metric, f"{name}_features_cov_sum", products)
        setattr(metric, f"{name}_features_num_samples", torch.tensor(len(features)))
    metric.orig_dtype = torch.float64
    metric._update_count, metric._computed = 1, None
