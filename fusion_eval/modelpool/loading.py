"""Weights into a module: every weight is set from the checkpoint, or nothing is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from fusion_eval.errors import AlignmentError, Fault, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint
from fusion_eval.merge.loop import stream
from fusion_eval.merge.views import subset


def load_into(skeleton: nn.Module, checkpoint: Mapping[str, Tensor]) -> nn.Module:
    """The skeleton with all its weights taken from the checkpoint, in evaluation mode.

    Values are copied into the skeleton's memory, in its dtypes, tensor by tensor; weights on the meta device get memory
    of their own. Names that the module ties need be there only once. Integer buffers that the module recomputes
    (non-persistent ones, such as position ids) may be in the checkpoint or not, and are left alone.

    Raises:
        AlignmentError: listing weights that are missing, unexpected, or of another shape or kind; nothing was loaded.
    """
    weights = checkpoint if isinstance(checkpoint, Checkpoint) else StateDictCheckpoint(checkpoint)
    slots, transient = _slots(skeleton), _transient_buffers(skeleton)
    plan = _plan(slots, transient, weights)
    faults = [*_name_faults(slots, transient, weights, plan), *_value_faults(slots, weights, plan)]
    if faults:
        raise AlignmentError(*faults)
    _materialise(skeleton)
    with torch.no_grad():
        sink = _ModuleSink(_slots(skeleton), plan)
        stream(subset(weights, list(plan)), sink)
        sink.finish()
    return skeleton.eval()


class _ModuleSink:
    """Writes each stored tensor into the weights of a module that take it."""

    def __init__(self, slots: Mapping[str, Tensor], plan: Mapping[str, list[str]]) -> None:
        self._slots = {stored: [slots[name].detach() for name in names] for stored, names in plan.items()}
        # a channels-last weight has no flat view: it is filled beside the module and copied over at the end
        self._flat = {stored: [slot.reshape(-1) for slot in found] for stored, found in self._slots.items()}

    def write(self, name: str, tensor: Tensor, start: int = 0) -> None:
        for flat in self._flat[name]:
            flat[start : start + tensor.numel()].copy_(tensor.reshape(-1))

    def finish(self) -> None:
        for name, slots in self._slots.items():
            for slot, flat in zip(slots, self._flat[name], strict=True):
                if not slot.is_contiguous():
                    slot.copy_(flat.view(slot.shape))


def _slots(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under every name that they have."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _transient_buffers(module: nn.Module) -> set[str]:
    """Names of buffers that the module itself does not save."""
    found = set()
    for prefix, part in module.named_modules(remove_duplicate=False):
        found |= {f"{prefix}.{name}" if prefix else name for name in part._non_persistent_buffers_set}
    return found


def _plan(slots: Mapping[str, Tensor], transient: set[str], weights: Checkpoint) -> dict[str, list[str]]:
    """{name in the checkpoint: names in the module}: which stored tensor goes where, each weight being set once."""
    plan: dict[str, list[str]] = {}
    filled: set[int] = set()
    for name, slot in slots.items():
        stored = weights.tied.get(name, name)
        recomputed = name in transient and not slot.is_floating_point()
        if stored in weights and id(slot) not in filled and not recomputed:
            plan.setdefault(stored, []).append(name)
            filled.add(id(slot))
    return plan


def _name_faults(
    slots: Mapping[str, Tensor], transient: set[str], weights: Checkpoint, plan: Mapping[str, list[str]]
) -> Iterator[Fault]:
    filled = {id(slots[name]) for names in plan.values() for name in names}
    unset = [name for name, slot in slots.items() if id(slot) not in filled]
    missing = [name for name in unset if name not in transient]
    unexpected = [name for name in [*weights, *weights.tied] if name not in slots]
    hollow = [name for name in unset if name in transient and slots[name].is_meta]
    if missing:
        found = f"lacks {len(missing)} of {len(slots)} weights of the model: {listed(missing)}"
        yield Fault(weights.source, found, do=did_you_mean(missing[0], unexpected))
    if unexpected:
        found = f"has {len(unexpected)} tensors that the model has no place for: {listed(unexpected)}"
        yield Fault(weights.source, found, do="Use the architecture that the weights were made for.")
    if hollow:
        found = f"{len(hollow)} buffers on the meta device that no checkpoint holds: {listed(hollow)}"
        yield Fault("the model to load into", found, do="Build it on the CPU.")


def _value_faults(slots: Mapping[str, Tensor], weights: Checkpoint, plan: Mapping[str, list[str]]) -> Iterator[Fault]:
    unequal, kinds = [], []
    for stored, name in ((stored, name) for stored, names in plan.items() for name in names):
        spec, slot = weights.spec(stored), slots[name]
        if spec.shape != tuple(slot.shape):
            unequal.append(f"{name} is {spec.shape} here and {tuple(slot.shape)} in the model")
        elif spec.dtype.is_floating_point != slot.dtype.is_floating_point:
            kinds.append(f"{name} is {spec.dtype} here and {slot.dtype} in the model")
    if unequal:
        yield Fault(weights.source, f"{len(unequal)} tensors of other shapes: {listed(unequal)}")
    if kinds:
        yield Fault(weights.source, f"{len(kinds)} tensors of another kind: {listed(kinds)}")
    yield from _disagreements(slots, weights, plan)


def _disagreements(slots: Mapping[str, Tensor], weights: Checkpoint, plan: Mapping[str, list[str]]) -> Iterator[Fault]:
    """Weights that the module ties and the checkpoint stores twice, with other values."""
    loaded = {id(slots[name]): stored for stored, names in plan.items() for name in names}
    for name, slot in slots.items():
        first = loaded.get(id(slot))
        if first is not None and name in weights and name != first and not torch.equal(weights[name], weights[first]):
            found = f"'{name}' and '{first}' differ, but the model ties them"
            yield Fault(weights.source, found, "equal tensors", "Untie them in the model's configuration.")


def _materialise(module: nn.Module) -> None:
    """Memory for the weights that are on the meta device; shared weights stay shared."""
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is None or tensor.device.type != "meta":
                    continue
                if id(tensor) not in made:
                    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                    made[id(tensor)] = (
                        nn.Parameter(empty, requires_grad=tensor.requires_grad)
                        if isinstance(tensor, nn.Parameter)
                        else empty
                    )
                table[name] = made[id(tensor)]  # type: ignore[assignment]
