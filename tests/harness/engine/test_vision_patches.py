from __future__ import annotations

import pytest
import torch
from torch import nn

from fusion_eval.harness.engine.vision_patches import FastPatches


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv3d(3, 8, (2, 4, 4), stride=(2, 4, 4)), (5, 3, 2, 4, 4)), (nn.Conv2d(3, 8, 4, stride=4), (5, 3, 4, 4))],
)
def test_patches_that_are_cut_out_are_one_product(layer: nn.Module, shape: tuple[int, ...]) -> None:
    patches, fast = torch.randn(shape), FastPatches(layer)
    with torch.inference_mode():
        expected = layer(patches)
        with fast():
            found = layer(patches)
            assert "forward" in layer.__dict__
    assert "forward" not in layer.__dict__
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)


def test_whole_pictures_and_other_convolutions_run_as_before() -> None:
    layer, picture = nn.Conv2d(3, 8, 4, stride=4), torch.randn(1, 3, 12, 12)
    overlapping = nn.Conv2d(3, 8, 4, stride=2)
    model = nn.Sequential(layer, overlapping)
    with torch.inference_mode():
        expected = layer(picture)
        with FastPatches(model)():
            assert torch.equal(layer(picture), expected)
            assert "forward" not in overlapping.__dict__
