"""Views: checkpoints computed from checkpoints, tensor by tensor, when they are read."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fusion_eval.errors import AlignmentError, CheckpointError, Fault, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec


class View(Checkpoint):
    """A checkpoint over one other: the same names unless a subclass says otherwise."""

    def __init__(self, inner: Checkpoint, step: str) -> None:
        self._inner, self._step = inner, step

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """The tensor after the step."""

    def spec(self, name: str) -> TensorSpec:
        """As in the viewed checkpoint."""
        return self._inner.spec(name)

    @property
    def tied(self) -> Mapping[str, str]:
        """As in the viewed checkpoint."""
        return self._inner.tied

    @property
    def source(self) -> str:
        """The viewed checkpoint's source and the step."""
        return f"{self._inner.source} ({self._step})"

    def prefetch(self, name: str) -> None:
        """Passed on."""
        self._inner.prefetch(name)

    def key(self) -> str | None:
        """The viewed checkpoint's key and the step."""
        inner = self._inner.key()
        return None if inner is None else f"{inner}|{self._step}"

    def __contains__(self, name: object) -> bool:
        return name in self._inner

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


class Cast(View):
    """Floating tensors in another dtype, rounded once; the others as they are."""

    def __init__(self, inner: Checkpoint, dtype: torch.dtype) -> None:
        super().__init__(inner, f"as {str(dtype).removeprefix('torch.')}")
        self._dtype = dtype

    def read(self, name: str) -> Tensor:
        """The tensor, cast."""
        return self._inner.read(name).to(self.spec(name).dtype)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The viewed pieces, cast."""
        dtype = self.spec(name).dtype
        return (piece.to(dtype) for piece in self._inner.pieces(name))

    def spec(self, name: str) -> TensorSpec:
        """The shape with the dtype of the cast."""
        spec = self._inner.spec(name)
        return TensorSpec(spec.shape, self._dtype) if spec.dtype.is_floating_point else spec

    def working_bytes(self, name: str) -> int:
        """The cast copy and what is below it."""
        own = 0 if self.spec(name) == self._inner.spec(name) else self.spec(name).nbytes
        return own + self._inner.working_bytes(name)


@dataclass(frozen=True, slots=True)
class Part:
    """Where a tensor of a composed checkpoint comes from."""

    checkpoint: Checkpoint
    name: str


class Composed(Checkpoint):
    """Tensors taken from other checkpoints under other names; nothing is copied.

    Renaming, filtering, and stacking layers are all this.
    """

    def __init__(self, parts: Mapping[str, Part], source: str, tied: Mapping[str, str] | None = None) -> None:
        self._parts, self._source, self._tied = dict(parts), source, dict(tied or {})

    @property
    def tied(self) -> Mapping[str, str]:
        """Other names of tensors that are stored once."""
        return MappingProxyType(self._tied)

    @property
    def source(self) -> str:
        """What was composed."""
        return self._source

    def read(self, name: str) -> Tensor:
        """The part's tensor."""
        part = self._parts[name]
        return part.checkpoint.read(part.name)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The part's pieces."""
        part = self._parts[name]
        return part.checkpoint.pieces(part.name)

    def spec(self, name: str) -> TensorSpec:
        """The part's shape and dtype."""
        part = self._parts[name]
        return part.checkpoint.spec(part.name)

    def working_bytes(self, name: str) -> int:
        """What the part needs."""
        part = self._parts[name]
        return part.checkpoint.working_bytes(part.name)

    def prefetch(self, name: str) -> None:
        """Passed on."""
        part = self._parts[name]
        part.checkpoint.prefetch(part.name)

    def key(self) -> str | None:
        """The keys of the checkpoints and the name of each part."""
        inner = {id(part.checkpoint): part.checkpoint for part in self._parts.values()}
        keys = {number: checkpoint.key() for number, checkpoint in inner.items()}
        if None in keys.values():
            return None
        order = {number: index for index, number in enumerate(keys)}
        parts = [(name, order[id(part.checkpoint)], part.name) for name, part in self._parts.items()]
        return f"{list(keys.values())}|{parts}|{self._tied}"

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def cast(checkpoint: Checkpoint, dtype: torch.dtype) -> Checkpoint:
    """The checkpoint with floating tensors in `dtype`."""
    return Cast(checkpoint, dtype)


def subset(checkpoint: Checkpoint, names: Iterable[str]) -> Checkpoint:
    """Only these tensors, in the checkpoint's order.

    Raises:
        CheckpointError: a name that the checkpoint lacks.
    """
    wanted = dict.fromkeys(names)
    unknown = [name for name in wanted if name not in checkpoint]
    if unknown:
        raise CheckpointError(
            Fault(checkpoint.source, f"no tensors {listed(unknown)}", do=did_you_mean(unknown[0], checkpoint))
        )
    return _kept(checkpoint, lambda name: name in wanted, checkpoint.source)


def filtered(checkpoint: Checkpoint, *, include: Sequence[str] = (".*",), exclude: Sequence[str] = ()) -> Checkpoint:
    """Only tensors whose name some `include` pattern finds and no `exclude` pattern does.

    Raises:
        CheckpointError: nothing is left.
    """
    wanted, unwanted = [re.compile(p) for p in include], [re.compile(p) for p in exclude]
    found = _kept(
        checkpoint,
        lambda name: any(p.search(name) for p in wanted) and not any(p.search(name) for p in unwanted),
        f"{checkpoint.source} (filtered)",
    )
    if not len(found):
        patterns = f"include {list(include)}, exclude {list(exclude)}"
        raise CheckpointError(Fault(checkpoint.source, f"no tensor is left by {patterns}", "at least one"))
    return found


def renamed(checkpoint: Checkpoint, rules: Mapping[str, str] | Callable[[str], str]) -> Checkpoint:
    """The tensors under other names: regular expressions with replacements, applied in order, or a function.

    Raises:
        AlignmentError: two tensors would get one name.
    """
    patterns = None if callable(rules) else [(re.compile(pattern), to) for pattern, to in rules.items()]

    def new(name: str) -> str:
        if patterns is None:
            assert callable(rules)
            return rules(name)
        for pattern, replacement in patterns:
            name = pattern.sub(replacement, name)
        return name

    names = [*checkpoint, *checkpoint.tied]
    owners: dict[str, list[str]] = {}
    for name in names:
        owners.setdefault(new(name), []).append(name)
    clashes = [f"{' and '.join(old)} -> {name}" for name, old in owners.items() if len(old) > 1]
    if clashes:
        raise AlignmentError(Fault(checkpoint.source, f"one name for several tensors: {listed(clashes)}"))
    parts = {new(name): Part(checkpoint, name) for name in checkpoint}
    tied = {new(name): new(kept) for name, kept in checkpoint.tied.items()}
    return Composed(parts, f"{checkpoint.source} (renamed)", tied)


def with_prefix(checkpoint: Checkpoint, prefix: str) -> Checkpoint:
    """The tensors under `prefix` + name."""
    return renamed(checkpoint, lambda name: prefix + name)


def without_prefix(checkpoint: Checkpoint, prefix: str) -> Checkpoint:
    """The tensors whose names begin with `prefix`, without it; the others are left out."""
    inside = filtered(checkpoint, include=(f"^{re.escape(prefix)}",))
    return renamed(inside, lambda name: name.removeprefix(prefix))


def _kept(checkpoint: Checkpoint, wanted: Callable[[str], bool], source: str) -> Checkpoint:
    """The wanted tensors; a tied name whose tensor is not wanted, but which is itself, stands for the tensor."""
    parts = {name: Part(checkpoint, name) for name in checkpoint if wanted(name)}
    tied: dict[str, str] = {}
    stand_ins: dict[str, str] = {}
    for name, kept in checkpoint.tied.items():
        if not wanted(name):
            continue
        if kept in parts:
            tied[name] = kept
        elif kept in stand_ins:
            tied[name] = stand_ins[kept]
        else:
            stand_ins[kept] = name
            parts[name] = Part(checkpoint, kept)
    return Composed(parts, source, tied)
