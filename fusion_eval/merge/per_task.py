"""Merges that give a model per task: one shared part, and for each task a small part of its own.

A tensor of a task's model is decoded from the base, the shared parts and the task's parts, by what parts there are:
`delta` is added; `bits` with a shared `delta` is a mask on it, times `scale`; `bits` alone are signs, times `scale`;
`U`, `S`, `V` are a decomposition. Computed on demand or read from a folder, the decoding is the same.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from fusion_eval.errors import CheckpointError, Fault, MethodError, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import TensorGroup, working
from fusion_eval.merge.sinks import new_folder

Parts = Mapping[str, Tensor]
_NOTHING: Parts = MappingProxyType({})
_SEPARATOR = "|"
_INDEX, _SHARED = "tasks.json", "shared.safetensors"


class Encoder(ABC):
    """How the tensors of a pool become a shared part and a part per task."""

    @abstractmethod
    def shared(self, group: TensorGroup) -> Parts:
        """What every task's model needs of a tensor."""

    @abstractmethod
    def own(self, group: TensorGroup, index: int, shared: Parts) -> Parts:
        """What expert `index`'s model needs beside."""


class Source(Protocol):
    """Where parts come from: a pool that is encoded on demand, or a folder."""

    def shared(self, name: str) -> Parts:
        """The shared parts of a tensor."""

    def own(self, name: str, task: str) -> Parts:
        """A task's parts of a tensor."""


class PoolSource:
    """Parts encoded on demand from a pool."""

    def __init__(self, pool: AlignedPool, encoder: Encoder) -> None:
        self.pool, self.encoder = pool, encoder
        self.tasks = tuple(pool.experts)

    def shared(self, name: str) -> Parts:
        """The shared parts of a tensor."""
        return self.encoder.shared(self.pool.group(name)) if self._encoded(name) else _NOTHING

    def own(self, name: str, task: str) -> Parts:
        """A task's parts of a tensor."""
        if not self._encoded(name):
            return _NOTHING
        group = self.pool.group(name)
        return self.encoder.own(group, self.tasks.index(task), self.encoder.shared(group))

    def _encoded(self, name: str) -> bool:
        return self.pool.reference.spec(name).dtype.is_floating_point


class FolderSource:
    """Parts read from a folder that `TaskCheckpoints.save` wrote."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._files: dict[str, Any] = {
            path.name: safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))
        }
        self._names = {name: set(file.keys()) for name, file in self._files.items()}

    def shared(self, name: str) -> Parts:
        """The shared parts of a tensor."""
        return self._parts(_SHARED, name)

    def own(self, name: str, task: str) -> Parts:
        """A task's parts of a tensor."""
        return self._parts(_file_name(task), name)

    def _parts(self, file: str, name: str) -> Parts:
        known = self._names[file]
        keys = {part: f"{name}{_SEPARATOR}{part}" for part in ("delta", "bits", "scale", "U", "S", "V")}
        return {part: self._files[file].get_tensor(key) for part, key in keys.items() if key in known}


class TaskCheckpoint(Checkpoint):
    """One task's model, decoded tensor by tensor; without a task, the shared model."""

    def __init__(self, base: Checkpoint, source: Source, task: str | None) -> None:
        self.base, self._parts, self.task = base, source, task

    def read(self, name: str) -> Tensor:
        """The task's tensor, rounded once to the base's dtype."""
        base = self.base[name]
        if not base.dtype.is_floating_point:
            return base
        shared = self._parts.shared(name)
        own = _NOTHING if self.task is None else self._parts.own(name, self.task)
        decoded = decode(base, shared, own).to(base.dtype)
        if not bool(decoded.isfinite().all()) and not torch.equal(decoded.isfinite(), base.isfinite()):
            found = f"the model for task '{self.task}' is not finite" if self.task else "the shared part is not finite"
            raise MethodError(Fault(f"tensor '{name}'", found, "finite numbers", "Leave that model out."))
        return decoded

    def spec(self, name: str) -> TensorSpec:
        """As in the base."""
        return self.base.spec(name)

    @property
    def tied(self) -> Mapping[str, str]:
        """As in the base."""
        return self.base.tied

    @property
    def source(self) -> str:
        """Which task's model this is."""
        return "the shared part of a merge" if self.task is None else f"a merge for task '{self.task}'"

    def __contains__(self, name: object) -> bool:
        return name in self.base

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)


class TaskCheckpoints(Mapping[str, Checkpoint]):
    """A model per task by the experts' names, each a lazy checkpoint; `shared` is the model without a task.

    Args:
        base: the base's weights.
        source: where shared parts and tasks' parts come from.
        tasks: the tasks' names.
    """

    def __init__(self, base: Checkpoint, source: Source, tasks: tuple[str, ...]) -> None:
        self.base, self._source, self.tasks = base, source, tasks

    @classmethod
    def of(cls, pool: AlignedPool, encoder: Encoder) -> TaskCheckpoints:
        """The models of a pool's experts, encoded on demand."""
        return cls(pool.reference, PoolSource(pool, encoder), tuple(pool.experts))

    @classmethod
    def load(cls, folder: Path, base: Checkpoint) -> TaskCheckpoints:
        """The models that a folder holds, over the base they were made for.

        Raises:
            CheckpointError: no such folder, or another base.
        """
        if not (folder / _INDEX).is_file():
            raise CheckpointError(Fault(str(folder), f"no file {_INDEX}", "a folder of a per-task merge"))
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        shapes = {name: list(base.spec(name).shape) for name in base}
        if shapes != index["shapes"] or base.fingerprint() != index["base"]:
            raise CheckpointError(
                Fault(str(folder), f"was made for another base than {base.source}", f"the weights {index['base'][:16]}")
            )
        return cls(base, FolderSource(folder), tuple(index["tasks"]))

    @property
    def shared(self) -> Checkpoint:
        """The base with the part that all tasks share."""
        return TaskCheckpoint(self.base, self._source, None)

    def save(self, folder: Path, finish: Callable[[Path], None] | None = None) -> None:
        """Write the shared part once and each task's part beside it; the folder appears whole or not at all.

        Args:
            folder: the target, which may not exist yet (or be empty).
            finish: called with the complete folder under its temporary name, to add other files.

        Raises:
            OutputError: the target exists or cannot be written.
        """
        with new_folder(folder) as partial:
            self._write(partial, _SHARED, {name: self._source.shared(name) for name in self.base})
            for task in self.tasks:
                self._write(partial, _file_name(task), {name: self._source.own(name, task) for name in self.base})
            shapes = {name: list(self.base.spec(name).shape) for name in self.base}
            index = {"tasks": list(self.tasks), "shapes": shapes, "base": self.base.fingerprint()}
            (partial / _INDEX).write_text(json.dumps(index), encoding="utf-8")
            if finish is not None:
                finish(partial)

    def _write(self, folder: Path, file: str, parts: Mapping[str, Parts]) -> None:
        from safetensors.torch import save_file

        save_file(_flat(parts), folder / file)

    def __getitem__(self, task: str) -> Checkpoint:
        if task not in self.tasks:
            do = did_you_mean(task, self.tasks)
            raise CheckpointError(Fault("a merge per task", f"no task '{task}'", f"one of {listed(self.tasks)}", do))
        return TaskCheckpoint(self.base, self._source, task)

    def __contains__(self, task: object) -> bool:
        return task in self.tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


def decode(base: Tensor, shared: Parts, own: Parts) -> Tensor:
    """A tensor from its base and parts, in float32 (float64 stays)."""
    base = working(base)
    if "U" in own:
        return base + ((own["U"] * own["S"]) @ own["V"]).to(base.dtype).reshape(base.shape)
    if "delta" in own:
        return base + own["delta"].to(base.dtype).reshape(base.shape)
    delta = shared["delta"].to(base.dtype) if "delta" in shared else None
    if "bits" not in own:
        return base if delta is None else base + delta
    bits = unpacked(own["bits"], base.shape).to(base.dtype)
    scale = own["scale"].to(base.dtype)
    return base + scale * (2 * bits - 1 if delta is None else bits * delta)


def packed(mask: Tensor) -> Tensor:
    """A boolean tensor as bytes, eight entries each."""
    return torch.from_numpy(np.packbits(mask.reshape(-1).cpu().numpy()))


def unpacked(bits: Tensor, shape: torch.Size) -> Tensor:
    """The boolean tensor of a shape that `packed` made bytes of."""
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=shape.numel())).reshape(shape).bool()


def _flat(parts: Mapping[str, Parts]) -> dict[str, Tensor]:
    return {
        f"{name}{_SEPARATOR}{part}": tensor.contiguous() for name, own in parts.items() for part, tensor in own.items()
    }


def _file_name(task: str) -> str:
    return f"task-{quote(task, safe='')}.safetensors"
