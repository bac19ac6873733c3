"""The layout of a checkpoint on disk, known before a tensor is merged: which tensor lies where in which shard."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from fusion_eval.errors import Fault, OutputError
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.safetensors_file import DTYPES

INDEX: Final = "model.safetensors.index.json"
_NAMES: Final[Mapping[torch.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file to be written.

    Args:
        file: its name.
        header: its first bytes, up to the tensors.
        offsets: where each tensor begins, counted from the start of the file.
        sizes: how many bytes each tensor has.
        size: the size of the file.
    """

    file: str
    header: bytes
    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    size: int


def plan_shards(checkpoint: Checkpoint, shard_bytes: int) -> tuple[Shard, ...]:
    """The shards of a checkpoint in its own order, none with more than `shard_bytes` unless one tensor has.

    Raises:
        OutputError: a tensor has a dtype that safetensors lacks.
    """
    faults = [
        Fault(f"tensor '{name}'", f"dtype {checkpoint.spec(name).dtype}", "a dtype of safetensors", "Cast it.")
        for name in checkpoint
        if checkpoint.spec(name).dtype not in _NAMES
    ]
    if faults:
        raise OutputError(*faults)
    groups: list[list[str]] = [[]]
    filled = 0
    for name in checkpoint:
        size = checkpoint.spec(name).nbytes
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return tuple(_shard(checkpoint, names, index, len(groups)) for index, names in enumerate(groups))


def _shard(checkpoint: Checkpoint, names: Sequence[str], index: int, count: int) -> Shard:
    file = "model.safetensors" if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"
    specs = {name: checkpoint.spec(name) for name in names}
    # the widest dtypes first, so that every tensor is aligned and no gap is needed
    ordered = sorted(names, key=lambda name: -specs[name].dtype.itemsize)
    metadata = {"format": "pt"} | {other: kept for other, kept in checkpoint.tied.items() if kept in specs}
    header = _header({name: specs[name] for name in ordered}, metadata)
    offsets, place = {}, len(header)
    for name in ordered:
        offsets[name] = place
        place += specs[name].nbytes
    return Shard(file, header, offsets, {name: specs[name].nbytes for name in ordered}, place)


def _header(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name, spec in specs.items():
        offsets = [place, place + spec.nbytes]
        entries[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
        place += spec.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def index_text(shards: Sequence[Shard]) -> str:
    """The content of `model.safetensors.index.json`."""
    total = sum(shard.size - len(shard.header) for shard in shards)
    weight_map = {name: shard.file for shard in shards for name in shard.offsets}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
