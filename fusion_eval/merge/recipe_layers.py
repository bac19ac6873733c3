"""Layers of models under the numbers that a recipe gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusion_eval.errors import ConfigError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.layers import layer_counts, layer_of
from fusion_eval.merge.recipe import Input
from fusion_eval.merge.stack import INPUT_SIDE
from fusion_eval.merge.views import Composed, Part


@dataclass(frozen=True, slots=True)
class Piece:
    """What one model gives to a segment.

    Args:
        input: the model in the recipe.
        checkpoint: its tensors, under the names of the result.
        stored: {name in the result: name in the model}, empty where they are the same.
        numbers: {name in the result: number of its layer in the result} of tensors in layers.
    """

    input: Input
    checkpoint: Checkpoint
    stored: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


def stack_of(checkpoints: Sequence[Checkpoint], where: str) -> str:
    """The name of the stack that a recipe's layer numbers count: the deepest one.

    Raises:
        ConfigError: no layers, or several stacks that are equally deep.
    """
    counts = layer_counts(checkpoints[0])
    most = max(counts.values(), default=0)
    found = [stack for stack, count in counts.items() if count == most]
    if len(found) == 1:
        return found[0]
    what = f"stacks of equally many layers: {listed(found)}" if found else "no numbered layers"
    raise ConfigError(
        Fault(where, f"{checkpoints[0].source} has {what}", "one stack", "Use modules: {part: {slices: ...}}.")
    )


def layered(each: Input, checkpoint: Checkpoint, stack: str, offset: int, ends: tuple[bool, bool]) -> Piece:
    """Layers of a model, numbered from `offset` on; with what lies before and after the layers where it is an end.

    Raises:
        ConfigError: the model lacks the layers.
    """
    assert each.layers is not None, "whole models have no layers to number"
    start, end = each.layers
    count = layer_counts(checkpoint).get(stack, 0)
    if end > count:
        found = f"layers {start} to {end} of '{each.model}', which has {count}"
        raise ConfigError(Fault(each.where, found, f"layer_range within [0, {count}]"))
    stored: dict[str, str] = {}
    numbers: dict[str, int] = {}
    after: list[str] = []
    for name in checkpoint:
        layer = layer_of(name)
        if layer is None or layer[0] != stack:
            before = re.search(INPUT_SIDE, name) is not None
            if before and ends[0]:
                stored[name] = name
            elif not before and ends[1]:
                after.append(name)
        elif start <= layer[1] < end:
            new = renumbered(name, stack, layer[1], layer[1] - start + offset)
            stored[new], numbers[new] = name, layer[1] - start + offset
    stored |= {name: name for name in after}
    parts = {new: Part(checkpoint, old) for new, old in stored.items()}
    tied = {name: kept for name, kept in checkpoint.tied.items() if kept in parts and layer_of(name) is None}
    return Piece(each, Composed(parts, f"{checkpoint.source}[{start}:{end}]", tied), stored, numbers)


def renumbered(name: str, stack: str, old: int, new: int) -> str:
    """The name of a tensor in another layer of its stack."""
    head = f"{stack}." if stack else ""
    return f"{head}{new}{name[len(head) + len(str(old)) :]}"
