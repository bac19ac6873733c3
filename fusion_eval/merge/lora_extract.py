"""LoRA adapters extracted from a fine-tuned model: the best low-rank approximation of every change of a matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from fusion_eval.errors import AlignmentError, CheckpointError, Fault
from fusion_eval.merge.alignment import alignment_faults
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.group import working
from fusion_eval.merge.layers import layer_of
from fusion_eval.merge.sinks import new_folder
from fusion_eval.merge.stack import INPUT_SIDE
from fusion_eval.merge.steps_spectral import svd

_PREFIX: Final = "base_model.model."
_WEIGHTS: Final = "adapter_model.safetensors"
_CONFIG: Final = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class Extraction:
    """An adapter in memory.

    Args:
        config: PEFT's adapter_config.json.
        tensors: the factors and the tensors that are kept whole, under PEFT's names.
        errors: for each low-rank weight the share of its change's norm that is lost.
        lost: the same for all of them together.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    errors: Mapping[str, float] = field(default_factory=dict)
    lost: float = 0.0

    def save(self, folder: Path) -> None:
        """Write a PEFT adapter folder, which may not exist yet.

        Raises:
            OutputError: it exists, or cannot be written.
        """
        from safetensors.torch import save_file

        with new_folder(folder) as partial:
            save_file(dict(self.tensors), partial / _WEIGHTS, metadata={"format": "pt"})
            (partial / _CONFIG).write_text(json.dumps(dict(self.config), indent=2) + "\n", encoding="utf-8")


def extract_lora(
    base: Checkpoint,
    tuned: Checkpoint,
    *,
    rank: int = 16,
    epsilon: float = 0.0,
    exclude: Sequence[str] = (),
    base_name: str | None = None,
) -> Extraction:
    """The adapter that turns a base into a fine-tuned model as nearly as its rank allows (LoRA, arXiv:2106.09685).

    W_tuned - W_base = U S V^T; B = U_r sqrt(S_r), A = sqrt(S_r) V_r^T, which is the nearest matrix of rank r (Eckart
    and Young, 1936). Matrices in layers become factors; all else that changed (embeddings, norms, biases, kernels) is
    kept whole.

    Args:
        base: the model that the other one was trained from.
        tuned: the fine-tuned model.
        rank: the largest rank; a matrix whose change has fewer singular values above the bound gets a smaller one.
        epsilon: singular values up to this share of the largest are left out.
        exclude: regular expressions; tensors that they find stay as in the base.
        base_name: the base's folder or hub id, for the adapter's config.

    Raises:
        AlignmentError: the models differ in names or shapes.
        CheckpointError: the models are equal.
    """
    faults = alignment_faults(base, {"tuned": tuned})
    if faults:
        raise AlignmentError(*faults)
    changed = [name for name in base if not any(re.search(pattern, name) for pattern in exclude)]
    changed = [name for name in changed if name in tuned and not torch.equal(base[name], tuned[name])]
    if not changed:
        raise CheckpointError(Fault(tuned.source, f"no tensor differs from {base.source}", "a fine-tuned model"))
    targets = _targets(base, changed)
    transposed = _transposed(base, targets)
    tensors: dict[str, Tensor] = {}
    ranks, errors, squares = dict[str, int](), dict[str, float](), [0.0, 0.0]
    for module in targets:
        name = f"{module}.weight"
        delta = working(tuned[name]) - working(base[name])
        up, down, lost = factors(delta.T if transposed else delta, rank, epsilon)
        total = float(delta.square().sum())
        tensors[f"{_PREFIX}{module}.lora_A.weight"], tensors[f"{_PREFIX}{module}.lora_B.weight"] = down, up
        ranks[module], errors[name] = len(down), (lost / total) ** 0.5
        squares = [squares[0] + lost, squares[1] + total]
    whole = _whole(base, changed, targets)
    tensors |= {f"{_PREFIX}{name}": tuned[name].clone() for name in base if _module(name) in whole}
    config = _config(ranks, rank, sorted({module.rpartition(".")[2] for module in whole}), transposed, base_name)
    return Extraction(config, tensors, errors, (squares[0] / squares[1]) ** 0.5 if squares[1] else 0.0)


def factors(delta: Tensor, rank: int, epsilon: float = 0.0) -> tuple[Tensor, Tensor, float]:
    """(B (out, r), A (r, in), the squared norm of what is lost) of a matrix (out, in)."""
    U, S, V = svd(delta)
    kept = max(1, min(rank, int((epsilon * S[0] < S).sum())))
    root = S[:kept].sqrt()
    up, down = (U[:, :kept] * root).float(), (root[:, None] * V[:kept]).float()
    return up.contiguous(), down.contiguous(), float(S[kept:].square().sum())


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _targets(base: Checkpoint, changed: Sequence[str]) -> list[str]:
    """Modules of which only a weight in a layer changed, and that is a matrix."""
    found = []
    for name in changed:
        matrix = name.endswith(".weight") and len(base.spec(name).shape) == 2
        table = layer_of(name) is None or re.search(INPUT_SIDE, name) is not None
        alone = [other for other in changed if _module(other) == _module(name)] == [name]
        if matrix and not table and alone:
            found.append(_module(name))
    return found


def _transposed(base: Checkpoint, targets: Sequence[str]) -> bool:
    """Whether weights are stored as (in, out), which a bias of another length than the rows tells."""
    for module in targets:
        rows, columns = base.spec(f"{module}.weight").shape
        if rows != columns and f"{module}.bias" in base:
            return base.spec(f"{module}.bias").shape == (columns,)
    return False


def _whole(base: Checkpoint, changed: Sequence[str], targets: Sequence[str]) -> set[str]:
    """Modules that are kept whole: PEFT finds them by their last name, so all modules of that name."""
    names = {_module(name).rpartition(".")[2] for name in changed if _module(name) not in targets}
    return {
        _module(name) for name in base if _module(name).rpartition(".")[2] in names and _module(name) not in targets
    }


def _config(
    ranks: Mapping[str, int], rank: int, whole: Sequence[str], transposed: bool, base_name: str | None
) -> dict[str, Any]:
    other = {module: own for module, own in ranks.items() if own != rank}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": other,
        "alpha_pattern": dict(other),
        "target_modules": list(ranks),
        "modules_to_save": list(whole) or None,
        "fan_in_fan_out": transposed,
        "bias": "none",
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
