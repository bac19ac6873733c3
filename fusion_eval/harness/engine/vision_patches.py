"""Patch embeddings of a vision tower on a CPU as the matrix products that they are.

A convolution over patches that are cut out already (its kernel covers the whole input) is one product of a matrix of
patches with the kernel; the general kernels for three axes take several times as long.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from fusion_eval.harness.engine.linear import Forward, replaced


class FastPatches:
    """The convolutions of a model that may be replaced while it is asked.

    Args:
        model: a module.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pairs: Sequence[tuple[Any, Forward]] = [
            (module, functools.partial(_product, module)) for module in model.modules() if _suits(module)
        ]

    def __call__(self) -> AbstractContextManager[None]:
        """Inside, patches are multiplied."""
        return replaced(self._pairs)


def _suits(module: nn.Module) -> bool:
    if not isinstance(module, (nn.Conv2d, nn.Conv3d)) or module.weight.device.type != "cpu":
        return False
    apart = module.kernel_size == module.stride and module.groups == 1 and isinstance(module.padding, tuple)
    return apart and not any(module.padding) and set(module.dilation) == {1}


def _product(module: Any, patches: torch.Tensor) -> torch.Tensor:
    kernel = tuple(module.kernel_size)
    if tuple(patches.shape[2:]) != kernel or torch.is_grad_enabled():
        found: torch.Tensor = type(module).forward(module, patches)
        return found
    flat = nn.functional.linear(patches.flatten(1), module.weight.flatten(1), module.bias)
    return flat.reshape(*flat.shape, *(1 for _ in kernel))
