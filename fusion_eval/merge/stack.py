"""Layers of checkpoints put on top of each other under new numbers: passthrough merges, depth upscaling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fusion_eval.errors import AlignmentError, CheckpointError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.layers import layer_counts, layer_of
from fusion_eval.merge.views import Composed, Part

INPUT_SIDE: Final = r"(?i)embed|(^|\.)(wte|wpe)(\.|$)"
"""Names of tensors that lie before the layers; the other ones outside the layers lie after them."""


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers `start` (included) to `end` (excluded) of a checkpoint."""

    checkpoint: Checkpoint
    start: int
    end: int


def stacked(ranges: Sequence[LayerRange], *, stack: str | None = None, input_side: str = INPUT_SIDE) -> Checkpoint:
    """The layers of the ranges, numbered consecutively; what lies before and after them is of the first and last range.

    Nothing is left out but layers that no range names: every tensor outside the layers is there.

    Args:
        ranges: at least one; a layer may be used more than once.
        stack: the name before the layer number, such as `model.layers`; by default the stack with the most layers.
        input_side: a regular expression for tensors, outside the layers, that lie before them.

    Raises:
        CheckpointError: no stack of layers, several equally deep ones, or layers that a checkpoint lacks.
        AlignmentError: the checkpoints differ in the names of a layer's, or of the other, tensors.
    """
    stack = stack if stack is not None else _deepest(ranges[0].checkpoint)
    faults = [fault for index, part in enumerate(ranges) for fault in _range_faults(index, part, stack)]
    if faults:
        raise CheckpointError(*faults)
    parts: dict[str, Part] = {}
    before, after = ranges[0].checkpoint, ranges[-1].checkpoint
    _require_same_rest(before, after, stack)
    for name in before:
        if _layer(name, stack) is None and re.search(input_side, name):
            parts[name] = Part(before, name)
    number = 0
    for part in ranges:
        for layer, names in _layers(part, stack):
            parts |= {_renumbered(name, stack, layer, number): Part(part.checkpoint, name) for name in names}
            number += 1
    for name in after:
        if _layer(name, stack) is None and not re.search(input_side, name):
            parts[name] = Part(after, name)
    tied = {name: kept for name, kept in before.tied.items() if kept in parts and _layer(name, stack) is None}
    text = " + ".join(f"{part.checkpoint.source}[{part.start}:{part.end}]" for part in ranges)
    return Composed(parts, text, tied)


def _deepest(checkpoint: Checkpoint) -> str:
    counts = layer_counts(checkpoint)
    most = max(counts.values(), default=0)
    found = [stack for stack, count in counts.items() if count == most]
    if len(found) != 1:
        what = f"stacks of equally many layers: {listed(found)}" if found else "no numbered layers"
        raise CheckpointError(Fault(checkpoint.source, what, "one stack", "Say which: stack=NAME."))
    return found[0]


def _layer(name: str, stack: str) -> int | None:
    found = layer_of(name)
    return found[1] if found is not None and found[0] == stack else None


def _layers(part: LayerRange, stack: str) -> list[tuple[int, list[str]]]:
    names: dict[int, list[str]] = {layer: [] for layer in range(part.start, part.end)}
    for name in part.checkpoint:
        layer = _layer(name, stack)
        if layer in names:
            names[layer].append(name)
    return list(names.items())


def _renumbered(name: str, stack: str, old: int, new: int) -> str:
    head = f"{stack}.{old}" if stack and not stack.endswith(".") else f"{stack}{old}"
    return f"{head.removesuffix(str(old))}{new}{name[len(head) :]}"


def _range_faults(index: int, part: LayerRange, stack: str) -> list[Fault]:
    where = f"range {index + 1}, {part.checkpoint.source}"
    count = layer_counts(part.checkpoint).get(stack, 0)
    if not 0 <= part.start < part.end <= count:
        found = f"layers {part.start} to {part.end} of '{stack}', which has {count}"
        return [Fault(where, found, f"0 <= start < end <= {count}")]
    hollow = [str(layer) for layer, names in _layers(part, stack) if not names]
    return [Fault(where, f"no tensors in the layers {listed(hollow)}")] if hollow else []


def _require_same_rest(before: Checkpoint, after: Checkpoint, stack: str) -> None:
    """What is outside the layers must have the same names, or a tensor would be lost in the middle."""
    outside = [{name for name in checkpoint if _layer(name, stack) is None} for checkpoint in (before, after)]
    lost, extra = sorted(outside[0] - outside[1]), sorted(outside[1] - outside[0])
    if lost or extra:
        found = f"tensors outside the layers that only one has: {listed([*lost, *extra])}"
        raise AlignmentError(Fault(f"{before.source} and {after.source}", found, "the same names"))
