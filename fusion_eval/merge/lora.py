"""A base model with PEFT adapters as a checkpoint: adapter folders, matched to the names and shapes of the base."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from fusion_eval.errors import AlignmentError, CheckpointError, Fault, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.group import working
from fusion_eval.merge.low_rank import Adapted, Adapter, Update

CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX: Final = "base_model.model."
_FACTOR = re.compile(r"^(?P<path>.+)\.lora_(?P<kind>A|B|embedding_A|embedding_B|magnitude_vector)(?:\.weight)?$")
_CHANGED_BASE: Final = ("pissa", "olora", "corda", "loftq")


def adapted(base: Checkpoint, adapters: Mapping[str, float] | Sequence[str | os.PathLike[str]]) -> Checkpoint:
    """The base with PEFT LoRA adapters (LoRA arXiv:2106.09685, rsLoRA 2312.03732, DoRA 2402.09353) merged in.

    W + sum_i w_i s_i B_i A_i with s = alpha / r, or alpha / sqrt(r) in rsLoRA; in DoRA the rows of that sum get the
    lengths m. Nothing is computed before a weight is read.

    Args:
        base: the model that the adapters were trained on.
        adapters: folders, or folders with the weight w of each.

    Raises:
        CheckpointError: a folder is no adapter, or uses what cannot be merged (the fault says what).
        AlignmentError: weights that the base lacks, or of another shape.
    """
    weighted = dict(adapters) if isinstance(adapters, Mapping) else {os.fspath(path): 1.0 for path in adapters}
    opened = [open_adapter(base, Path(path), weight) for path, weight in weighted.items()]
    if len(opened) > 1:
        _refuse_clashes(list(weighted), opened)
    step = " + ".join(path if weight == 1 else f"{weight} {path}" for path, weight in weighted.items())
    return Adapted(base, opened, f"with {step}")


def open_adapter(base: Checkpoint, folder: Path, weight: float = 1.0) -> Adapter:
    """A PEFT adapter folder, matched to the names and shapes of its base.

    Raises:
        CheckpointError: the folder is no adapter, or uses what cannot be merged.
        AlignmentError: weights that the base lacks, or of another shape.
    """
    config, tensors = _opened(folder)
    _refuse(folder, config)
    factors, rest = _sorted_tensors(tensors)
    match, faults = _Matcher(base), []
    updates, replaced = {}, {}
    for path, parts in factors.items():
        name = match.name(f"{path}.weight")
        if name is None:
            faults.append(match.fault(folder, f"{path}.weight"))
            continue
        update = _update(config, path, {kind: tensors[tensor] for kind, tensor in parts.items()}, weight)
        if update is None:
            faults.append(Fault(f"{folder}, module '{path}'", f"only {listed(sorted(parts))}", "both factors"))
        elif "embedding_A" in parts and update.magnitude is not None:
            do = "Merge it with PEFT and give the merged model."
            faults.append(Fault(f"{folder}, module '{path}'", "DoRA of an embedding, which is not supported", do=do))
        elif (fault := _shape_fault(folder, name, base.spec(name), update)) is not None:
            faults.append(fault)
        else:
            updates[name] = update
    for tensor, path in rest.items():
        name = match.name(path)
        if name is None:
            faults.append(match.fault(folder, path))
        else:
            replaced[name] = tensors[tensor]
    if replaced and weight != 1:
        faults.append(Fault(str(folder), f"whole tensors ({listed(list(replaced))}) with weight {weight}", "weight 1"))
    if faults:
        raise AlignmentError(*faults)
    return Adapter(updates, replaced, f"{tensors.key()}|{json.dumps(config, sort_keys=True)}|{weight}")


def _opened(folder: Path) -> tuple[dict[str, Any], Checkpoint]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(Fault(str(folder), f"no {CONFIG} ({error.strerror})", "a PEFT adapter folder")) from error
    except ValueError as error:
        raise CheckpointError(Fault(str(folder / CONFIG), "not JSON", "the configuration of an adapter")) from error
    found = [folder / name for name in _WEIGHTS if (folder / name).is_file()]
    if not found:
        raise CheckpointError(Fault(str(folder), "no adapter weights", " or ".join(_WEIGHTS)))
    return config, open_checkpoint(found[0])


def _refuse(folder: Path, config: Mapping[str, Any]) -> None:
    """Kinds of adapters whose effect is not a change of single weights that is known from the adapter alone."""
    faults = []
    kind, start = config.get("peft_type"), str(config.get("init_lora_weights", "")).lower()
    if kind != "LORA":
        faults.append(Fault(str(folder / CONFIG), f"peft_type {kind}", "LORA"))
    if start.startswith(_CHANGED_BASE):
        do = "Convert it with PEFT's path_initial_model_for_weight_conversion."
        faults.append(Fault(str(folder / CONFIG), f"init_lora_weights {start}, which changes the base too", do=do))
    for option in ("lora_bias", "trainable_token_indices", "target_parameters", "alora_invocation_tokens"):
        if config.get(option):
            do = "Merge it with PEFT and give the merged model."
            faults.append(Fault(str(folder / CONFIG), f"{option} is set, which is not supported", do=do))
    if faults:
        raise CheckpointError(*faults)


def _sorted_tensors(tensors: Checkpoint) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """{module path: {factor: tensor name}} and {tensor name: name in the base} of whole tensors."""
    factors: dict[str, dict[str, str]] = {}
    rest: dict[str, str] = {}
    for name in tensors:
        plain = name.removeprefix(_PREFIX)
        found = _FACTOR.match(plain)
        if found is None:
            rest[name] = plain.replace(".modules_to_save.", ".").replace(".base_layer.", ".").replace(".default.", ".")
        else:
            factors.setdefault(found["path"], {})[found["kind"]] = name
    return factors, rest


def _update(config: Mapping[str, Any], path: str, parts: Mapping[str, Tensor], weight: float) -> Update | None:
    """The update of one module, or None where a factor is missing."""
    embedding = "embedding_A" in parts or "embedding_B" in parts
    prefix = "embedding_" if embedding else ""
    down, up, magnitude = parts.get(f"{prefix}A"), parts.get(f"{prefix}B"), parts.get("magnitude_vector")
    if down is None or up is None or (config.get("use_dora") and magnitude is None):
        return None
    rank = down.shape[0]
    alpha = _pattern_value(config.get("alpha_pattern"), path, config.get("lora_alpha", rank))
    scale = weight * alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    down, up = working(down).reshape(rank, -1), working(up).reshape(up.shape[0], -1)
    if embedding or config.get("fan_in_fan_out"):
        return Update(down.T, up.T, scale, magnitude, 1)
    return Update(up, down, scale, magnitude)


def _pattern_value(patterns: Mapping[str, float] | None, path: str, default: float) -> float:
    """PEFT's rule: the first key that is the path's end, or a regular expression for it, counts."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", path):
            return float(value)
    return float(default)


def _shape_fault(folder: Path, name: str, spec: TensorSpec, update: Update) -> Fault | None:
    found = (update.left.shape[0], update.right.shape[1])
    rows = spec.shape[0] if spec.shape else 1
    if update.left.shape[1] != update.right.shape[0] or found != (rows, spec.numel // max(1, rows)):
        return Fault(f"{folder}, tensor '{name}'", f"an update of shape {found}", f"one that fits {spec.shape}")
    return None


class _Matcher:
    """Finds the base's name of a path that may have more, or fewer, leading parts."""

    def __init__(self, base: Checkpoint) -> None:
        self._base, self._names = base, {*base, *base.tied}

    def name(self, path: str) -> str | None:
        if path in self._names:
            return path
        near = [name for name in self._names if path.endswith(f".{name}") or name.endswith(f".{path}")]
        return near[0] if len(near) == 1 else None

    def fault(self, folder: Path, path: str) -> Fault:
        do = did_you_mean(path, self._names)
        return Fault(str(folder), f"changes '{path}', which {self._base.source} lacks", "the adapter's own base", do)


def _refuse_clashes(paths: Sequence[str], adapters: Sequence[Adapter]) -> None:
    """Several adapters add up; DoRA and whole tensors do not."""
    faults, seen = list[Fault](), set[str]()
    for path, adapter in zip(paths, adapters, strict=True):
        if any(update.magnitude is not None for update in adapter.updates.values()):
            faults.append(Fault(path, "a DoRA adapter beside others, which do not add up", "one DoRA adapter alone"))
        again = seen & set(adapter.replaced)
        if again:
            faults.append(Fault(path, f"replaces {listed(sorted(again))} as another adapter does", "one of them"))
        seen |= set(adapter.replaced)
    if faults:
        raise CheckpointError(*faults)
