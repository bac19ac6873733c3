"""Depth of a tensor, discovered from names: no table of architectures."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def layer_of(name: str) -> tuple[str, int] | None:
    """The stack that a tensor belongs to (the path before its first number) and its number there, or None."""
    found = _NUMBER.search(name)
    return None if found is None else (name[: found.start()], int(found.group(1)))


def layer_counts(names: Iterable[str]) -> dict[str, int]:
    """How many layers each stack has."""
    counts: dict[str, int] = {}
    for name in names:
        layer = layer_of(name)
        if layer is not None:
            stack, number = layer
            counts[stack] = max(counts.get(stack, 0), number + 1)
    return counts


def layer_positions(names: Iterable[str], last: str | None = None) -> dict[str, float]:
    """Depth of each tensor: number / (layers of its stack - 1); 1 in a stack of one layer.

    Tensors outside every stack are at 0, or at 1 where the regular expression `last` fits their name.
    """
    names = list(names)
    counts = layer_counts(names)
    positions = {}
    for name in names:
        layer = layer_of(name)
        if layer is None:
            positions[name] = float(last is not None and re.search(last, name) is not None)
        else:
            stack, number = layer
            positions[name] = number / (counts[stack] - 1) if counts[stack] > 1 else 1.0
    return positions
