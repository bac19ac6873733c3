"""A checkpoint: named tensors that are read when asked for, and described without being read."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fusion_eval.errors import CheckpointError, Fault, did_you_mean


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor that need not have been read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * self.dtype.itemsize


class Checkpoint(ABC, Mapping[str, Tensor]):
    """A read-only mapping of names to tensors; iteration follows the order in which reading is cheapest.

    Views (casts, filters, adapters, merges) are checkpoints over checkpoints, so a merge of merges costs nothing
    until a tensor is asked for. Implementations give `read`, `spec`, `__iter__` and `__len__`.
    """

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """The tensor `name`, which exists; the caller may not change it in place."""

    @abstractmethod
    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of the tensor `name`, which exists, without reading it."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def tied(self) -> Mapping[str, str]:
        """Other names of tensors that are stored once: {other name: name}."""
        return MappingProxyType({})

    @property
    def source(self) -> str:
        """Where the weights come from, for people: a path, or what was computed."""
        return type(self).__name__

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The tensor `name` as consecutive flat runs of its elements, for consumers that need not hold it whole.

        A piece is valid until the next one is asked for.
        """
        yield self.read(name).reshape(-1)

    def working_bytes(self, name: str) -> int:
        """About how much memory of its own, in bytes, `pieces(name)` needs at its peak; 0 where a tensor is lent."""
        return self.spec(name).nbytes

    def prefetch(self, name: str) -> None:
        """Say that the tensor `name` is wanted soon."""

    def key(self) -> str | None:
        """What identifies the values without reading them (files with sizes and times, steps), or None if unknown.

        Equal keys promise equal values, so a merge that was killed may be resumed.
        """
        return None

    def fingerprint(self) -> str:
        """A hash of names, shapes, dtypes and values: equal weights, however stored, have equal ones."""
        names = sorted(self)
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            digests = pool.map(self._digest, names)
            return hashlib.sha256(b"".join(digests)).hexdigest()

    def _digest(self, name: str) -> bytes:
        spec = self.spec(name)
        digest = hashlib.sha256(f"{name}|{spec.dtype}|{spec.shape}|".encode())
        for piece in self.pieces(name):
            values = piece.detach().cpu().contiguous()
            if values.numel():
                digest.update(values.view(torch.uint8).numpy().data)
        return digest.digest()

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)

    def __getitem__(self, name: str) -> Tensor:
        self._require(name)
        return self.read(name)

    def _require(self, name: str) -> None:
        if name not in self:
            raise CheckpointError(
                Fault(
                    self.source,
                    f"no tensor named '{name}'",
                    f"one of its {len(self)} tensors",
                    did_you_mean(name, self),
                )
            )


class StateDictCheckpoint(Checkpoint):
    """Tensors that are in memory already, such as `module.state_dict()`."""

    def __init__(
        self, tensors: Mapping[str, Tensor], source: str = "a state dict", tied: Mapping[str, str] | None = None
    ) -> None:
        self._tied = MappingProxyType(dict(tied or {}))
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items() if name not in self._tied}
        self._source = source

    @classmethod
    def of(cls, module: nn.Module, source: str | None = None) -> StateDictCheckpoint:
        """A view of a module's state; shared parameters are kept tied. Later changes to the module show through."""
        state = module.state_dict(keep_vars=True)
        first: dict[int, str] = {}
        tied: dict[str, str] = {}
        for name, tensor in state.items():
            if id(tensor) in first:
                tied[name] = first[id(tensor)]
            else:
                first[id(tensor)] = name
        return cls(state, source or f"module {type(module).__name__}", tied)

    @property
    def tied(self) -> Mapping[str, str]:
        """Other names of tensors that are stored once."""
        return self._tied

    @property
    def source(self) -> str:
        """What the state dict was taken from."""
        return self._source

    def read(self, name: str) -> Tensor:
        """The tensor itself, not a copy."""
        return self._tensors[name]

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype."""
        tensor = self._tensors[name]
        return TensorSpec(tuple(tensor.shape), tensor.dtype)

    def working_bytes(self, name: str) -> int:
        """None: the tensor is lent."""
        return 0

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
