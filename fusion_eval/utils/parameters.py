"""Counting parameters."""

from __future__ import annotations

from torch import nn


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """(trainable, all) parameters of a module; a parameter that is shared counts once."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, trainable in sizes if trainable), sum(size for size, _ in sizes)
