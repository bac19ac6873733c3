"""Whether checkpoints can be merged tensor by tensor: the same names and shapes, tied weights understood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch

from fusion_eval.errors import Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint

_FEW: Final = 16  # tied weights are few; beyond this many differences nothing is read to look for them


def alignment_faults(base: Checkpoint | None, experts: Mapping[str, Checkpoint]) -> list[Fault]:
    """Names and shapes that differ between the reference and each other model, one fault per model and kind.

    Complex tensors, for which no merging method is defined, are faults too.
    """
    models = dict(experts) if base is None else {"base": base, **experts}
    (reference_name, reference), *others = models.items()
    complex_ones = [tensor for tensor in reference if reference.spec(tensor).dtype.is_complex]
    found = [fault for name, model in others for fault in _differences(reference_name, reference, name, model)]
    if complex_ones:
        what = f"{len(complex_ones)} complex tensors: {listed(complex_ones)}"
        found.append(Fault(f"model '{reference_name}'", what, "real ones", "Store real and imaginary parts apart."))
    return found


def stored_names(reference: Checkpoint, model: Checkpoint) -> dict[str, str]:
    """{name in the reference: name in the model} where the model stores a tensor under another name only.

    That is so where one of the two ties weights that the other stores twice.
    """
    missing = [name for name in reference if name not in model]
    twins = missing if len(missing) <= _FEW else []
    found = {}
    for name in missing:
        kept = model.tied.get(name) or (_twin(reference, name, model) if name in twins else None)
        if kept is not None and kept in model:
            found[name] = kept
    return found


def _differences(reference_name: str, reference: Checkpoint, name: str, model: Checkpoint) -> Iterator[Fault]:
    renamed = stored_names(reference, model)
    lost = [tensor for tensor in reference if tensor not in model and tensor not in renamed]
    extra = [tensor for tensor in model if tensor not in reference]
    if len(extra) <= _FEW:
        extra = [tensor for tensor in extra if not _is_copy(reference, tensor, model)]
    unequal = [
        f"{tensor} is {reference.spec(tensor).shape} in '{reference_name}' and {model.spec(stored).shape} here"
        for tensor, stored in ((tensor, renamed.get(tensor, tensor)) for tensor in reference)
        if stored in model and model.spec(stored).shape != reference.spec(tensor).shape
    ]
    where, total = f"model '{name}'", len(reference)
    do = _layout_hint(reference, lost, model, extra)
    if lost:
        yield Fault(where, f"lacks {len(lost)} of {total} tensors of '{reference_name}': {listed(lost)}", do=do)
    if extra:
        yield Fault(where, f"has {len(extra)} tensors that '{reference_name}' lacks: {listed(extra)}", do=do)
    if unequal:
        what = f"{len(unequal)} of {total} tensors differ in shape: {listed(unequal)}"
        yield Fault(where, what, do="Merge only models of one architecture.")


def _twin(checkpoint: Checkpoint, name: str, other: Checkpoint) -> str | None:
    """A tensor equal to `name` in the checkpoint that `other` has too: the two are tied, though stored twice."""
    spec = checkpoint.spec(name)
    if not spec.dtype.is_floating_point or len(spec.shape) < 2:
        return None
    for candidate in checkpoint:
        same = candidate != name and checkpoint.spec(candidate) == spec
        if same and candidate in other and torch.equal(checkpoint[candidate], checkpoint[name]):
            return candidate
    return None


def _is_copy(reference: Checkpoint, name: str, model: Checkpoint) -> bool:
    """Whether the model's tensor, which the reference lacks, is the copy of one that the reference has."""
    kept = reference.tied.get(name)
    if kept is not None and kept in model:
        return model.spec(kept) == model.spec(name) and torch.equal(model[kept], model[name])
    return kept is None and _twin(model, name, reference) is not None


def _layout_hint(reference: Checkpoint, lost: Sequence[str], model: Checkpoint, extra: Sequence[str]) -> str:
    """What to do, where the lost and the extra tensors hold equally many weights: one model has them fused."""
    before, after = sum(reference.spec(t).numel for t in lost), sum(model.spec(t).numel for t in extra)
    if not before or before != after:
        return ""
    if len(lost) == len(extra):
        return "The same weights under other names? Rename the tensors of one model."
    return "Equally many weights in another layout (fused or unfused)? Convert one model to the layout of the other."
