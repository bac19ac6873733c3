"""FID and KID keep features and nothing larger, and have intervals from the images' influences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from fusion_eval import compare
from fusion_eval.forms.distance import frechet_influence, kernel_influence


class Means(nn.Module):
    """Four features of an image: the means of its quarters, after a bend."""

    num_features = 4

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features (N, 4)."""
        return nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 2).flatten(1).sin()


class Bright(nn.Module):
    """Images made brighter."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images."""
        return (images + self.by * images.flip(0)).clamp(0, 1)


def frechet(real: np.ndarray, fake: np.ndarray) -> float:
    one, two = np.cov(real.T), np.cov(fake.T)
    gap = real.mean(axis=0) - fake.mean(axis=0)
    roots = np.sqrt(np.maximum(np.linalg.eigvals(one @ two).real, 0)).sum()
    return float(gap @ gap + np.trace(one) + np.trace(two) - 2 * roots)


def kernel(real: np.ndarray, fake: np.ndarray) -> float:
    n = len(real)
    xx, yy, xy = (((a @ b.T) / 4 + 1.0) ** 3 for a, b in ((real, real), (fake, fake), (real, fake)))
    return float((xx.sum() - np.trace(xx) + yy.sum() - np.trace(yy)) / (n * (n - 1)) - 2 * xy.mean())


@pytest.mark.parametrize(("influence", "distance"), [(frechet_influence, frechet), (kernel_influence, kernel)])
def test_influences_are_those_of_leaving_one_out(influence, distance) -> None:
    rng = np.random.default_rng(0)
    real = rng.normal(size=(400, 4)) * [1, 2, 0.5, 1]
    fake = real * 0.8 + 0.3 + rng.normal(scale=0.5, size=(400, 4))
    slopes = influence(real, fake) if distance is frechet else influence(real, fake, 3, 0.25, 1.0)
    without = [distance(np.delete(real, i, 0), np.delete(fake, i, 0)) for i in range(60)]
    change = distance(real, fake) - np.array(without)
    assert np.corrcoef(slopes[:60], change)[0, 1] > 0.998
    assert np.std(slopes[:60]) == pytest.approx(np.std(change), rel=0.03)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception")
def test_distances_are_compared_by_images_and_keep_features_only(tmp_path) -> None:
    images = (
        torch.rand(90, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        * torch.linspace(0.2, 1, 90)[:, None, None, None]
    )
    data = [(images[i : i + 16], images[i : i + 16]) for i in range(0, 90, 16)]
    metrics = {
        "fid": FrechetInceptionDistance(Means(), normalize=True),
        "kid": KernelInceptionDistance(Means(), normalize=True, subsets=5, subset_size=40),
    }
    options = {"task": "image_quality", "metrics": metrics, "resamples": 500}
    found = compare({"near": Bright(0.05), "far": Bright(0.5)}, data, cache=tmp_path, **options)
    whole = FrechetInceptionDistance(Means(), normalize=True)
    whole.update(images, real=True)
    whole.update(torch.cat([Bright(0.5)(x) for x, _ in data]), real=False)
    assert float(found.data["fid"][1, 0]) == pytest.approx(float(whole.compute()), rel=1e-4)
    for name in ("fid", "kid_0"):
        pair = found.comparison(name, "near", "far")
        assert pair.verdict == "better"
        assert pair.ci_low < pair.mean_diff < pair.ci_high < 0
    assert repr(compare({"near": Bright(0.05), "far": Bright(0.5)}, data, **options).comparisons) == repr(
        found.comparisons
    )
    stored = torch.load(next(tmp_path.glob("*.pt")), weights_only=True)["columns"]
    assert {name: tuple(column.shape) for name, column in stored.items()} == {
        "features:fid": (90, 2, 4),
        "features:kid": (90, 2, 4),
    }
