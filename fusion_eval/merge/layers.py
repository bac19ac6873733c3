"""Depth of a tensor, discovered from names: no table of architectures."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_TRAILING = re.compile(r"\d+$")
_SUFFIX = re.compile(r"(?:^|(?<=\.))[A-Za-z_]+?(\d+)(?=\.)")


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
    """Depth of each tensor, from 0 in the first layer to 1 in the last; 1 in a stack of one layer.

    Stacks whose names differ in a number at their end (`layer1`, `layer2`) follow each other. Where no layer has a
    number of its own, numbers at the end of modules' names count (`linear1`, `norm2`). Tensors outside the layers are
    at 0, or at 1 where the regular expression `last` fits their name.
    """
    names = list(names)
    blocks = {name: _block(name) for name in names}
    if not any(blocks.values()):
        blocks = {name: _suffixed(name) for name in names}
    order: dict[str, list[tuple[int, int]]] = {}
    for stem, place in {block for block in blocks.values() if block is not None}:
        order.setdefault(stem, []).append(place)
    ranks = {stem: {place: index for index, place in enumerate(sorted(places))} for stem, places in order.items()}
    positions = {}
    for name, block in blocks.items():
        if block is None:
            positions[name] = float(last is not None and re.search(last, name) is not None)
        else:
            places = ranks[block[0]]
            positions[name] = places[block[1]] / (len(places) - 1) if len(places) > 1 else 1.0
    return positions


def _block(name: str) -> tuple[str, tuple[int, int]] | None:
    """The stem of a tensor's stack, and the stack's number and the layer's number in it."""
    layer = layer_of(name)
    if layer is None:
        return None
    stem = _TRAILING.sub("", layer[0])
    return stem, (int(layer[0][len(stem) :] or 0), layer[1])


def _suffixed(name: str) -> tuple[str, tuple[int, int]] | None:
    """The number at the end of the first module's name that has one."""
    found = _SUFFIX.search(name)
    return None if found is None else (name[: found.start()], (int(found.group(1)), 0))
