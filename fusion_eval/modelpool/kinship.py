"""Whether experts descend from the base, and whether their tensors are of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from fusion_eval.errors import Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint

SAMPLED: Final = 8
UNRELATED: Final = 0.2
_LARGEST: Final = 1 << 22


def kinship(base: Checkpoint, expert: Checkpoint, sampled: int = SAMPLED) -> float:
    """The cosine between the weights of two models, over a few matrices spread over their depth; NaN without any.

    Fine-tuned models lie near their base (0.9 and more); models from another initialisation are near 0, and averaging
    them destroys both (Linear Mode Connectivity, arXiv:1912.05671).
    """
    names = [
        name
        for name in base
        if name in expert
        and base.spec(name).dtype.is_floating_point
        and len(base.spec(name).shape) >= 2
        and base.spec(name).shape == expert.spec(name).shape
    ]
    step = max(1, len(names) // sampled)
    dot = left = right = 0.0
    for name in names[step // 2 :: step][:sampled]:
        a = base[name].reshape(-1)[:_LARGEST].double()
        b = expert[name].reshape(-1)[:_LARGEST].double()
        a, b = a - a.mean(), b - b.mean()
        dot, left, right = dot + float(a @ b), left + float(a @ a), right + float(b @ b)
    return dot / (left * right) ** 0.5 if left and right else float("nan")


def kinship_notes(base: Checkpoint | None, experts: Mapping[str, Checkpoint]) -> list[str]:
    """One warning per expert that is no relative of the base; of the first expert where there is no base."""
    reference = "base"
    others = dict(experts)
    if base is None:
        if not others:
            return []
        reference, base = next(iter(others.items()))
        del others[reference]
    notes = []
    for name, expert in others.items():
        cosine = kinship(base, expert)
        if cosine < UNRELATED:
            notes.append(
                f"model '{name}' does not descend from '{reference}': the cosine of their weights is {cosine:.2f} "
                f"(fine-tuned models: above 0.9). Merging in weight space will destroy it."
            )
    return notes


def dtype_faults(base: Checkpoint | None, experts: Mapping[str, Checkpoint]) -> list[Fault]:
    """Tensors that are floating in one model and integer or boolean in another, one fault per model.

    Floating dtypes may differ: merging computes in float32 and rounds to the base's dtype.
    """
    models = dict(experts) if base is None else {"base": base, **experts}
    (reference_name, reference), *others = models.items()
    faults = []
    for name, model in others:
        mixed = [
            f"{tensor} is {_short(reference.spec(tensor).dtype)} in '{reference_name}' "
            f"and {_short(model.spec(tensor).dtype)} here"
            for tensor in reference
            if tensor in model
            and reference.spec(tensor).dtype.is_floating_point != model.spec(tensor).dtype.is_floating_point
        ]
        if mixed:
            found = f"{len(mixed)} of {len(reference)} tensors differ in kind: {listed(mixed)}"
            faults.append(Fault(f"model '{name}'", found, do="Dequantise the model first."))
    return faults


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
