"""A pool looked at before it is merged: one parameter at a time, in the memory that this parameter needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import numpy as np

from fusion_eval.errors import CheckpointError, Fault
from fusion_eval.merge.diagnosis import Array, Entrywise, Magnitudes, entrywise, equal_models
from fusion_eval.merge.diagnosis_matrix import DIRECTIONS, MatrixTraits, matrix_traits
from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import TensorGroup
from fusion_eval.merge.layers import layer_of

BASE = "base"
_NUMBER = re.compile(r"(^|\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Look:
    """How closely to look.

    Args:
        entries: of a larger parameter look at about so many entries only, evenly spaced; None looks at all.
        exact_side: matrices up to this smaller side are decomposed whole, larger ones sketched.
        directions: how many leading singular directions are compared.
        matrices: whether to look at singular values at all.
    """

    entries: int | None = None
    exact_side: int = 1024
    directions: int = DIRECTIONS
    matrices: bool = True


@dataclass(frozen=True, slots=True)
class TensorTraits:
    """One parameter: its sums, the part of the norm in its largest 20 % of entries, its singular values."""

    name: str
    shape: tuple[int, ...]
    sums: Entrywise
    top: Array
    matrix: MatrixTraits | None


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters taken together: a layer, a kind of tensor, or the whole model."""

    name: str
    sums: Entrywise
    matrices: tuple[MatrixTraits, ...]

    def mean(self, trait: str) -> float:
        """The mean of a trait over experts (over pairs of them for `overlap`) and matrices; NaN without any."""
        values = [getattr(matrix, trait) for matrix in self.matrices]
        return nan_mean([off_diagonal(value) if np.ndim(value) == 2 else nan_mean(value) for value in values])


@dataclass(slots=True)
class Survey:
    """What one process saw of its share of the parameters."""

    tensors: list[TensorTraits] = field(default_factory=list)
    magnitudes: Magnitudes | None = None
    equal: set[tuple[int, int]] = field(default_factory=set)
    broken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    integers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A pool's task vectors, parameter by parameter and as a whole.

    Args:
        experts: their names, in order.
        tensors: the floating parameters, in the reference's order.
        top: (N,) the part of each task vector's squared norm in its largest 20 % of entries.
        equal: pairs of models, the base among them, that hold equal values everywhere.
        broken: {parameter: models in which it is not finite}; these are in no other number.
        integers: integer and boolean tensors that differ between models.
    """

    experts: tuple[str, ...]
    tensors: tuple[TensorTraits, ...]
    top: Array
    equal: tuple[tuple[str, str], ...] = ()
    broken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    integers: tuple[str, ...] = ()

    @property
    def has_base(self) -> bool:
        """Whether vectors are task vectors; otherwise they are the experts' weights."""
        return self.tensors[0].sums.has_base

    @property
    def sampled(self) -> bool:
        """Whether entries of some parameter were not looked at."""
        return any(tensor.sums.seen < tensor.sums.numel for tensor in self.tensors)

    @property
    def sketched(self) -> int:
        """How many matrices were not decomposed whole."""
        return sum(tensor.matrix is not None and not tensor.matrix.exact for tensor in self.tensors)

    def whole(self) -> Part:
        """All parameters together."""
        return _part("whole model", self.tensors)

    def layers(self) -> tuple[Part, ...]:
        """Parameters by layer: by the path up to the first number in their names, or without one by their module."""
        return _grouped(self.tensors, layer_name)

    def kinds(self) -> tuple[Part, ...]:
        """Parameters by kind: by their names with every number left open."""
        return _grouped(self.tensors, kind_name)

    def kinship(self) -> Array:
        """(N,) cosines of weights with the base's (or the first expert's), over matrices where there are any."""
        matrices = [tensor.sums for tensor in self.tensors if len(tensor.shape) > 1]
        return reduce(add, matrices or [tensor.sums for tensor in self.tensors]).kinship()

    def first_share(self) -> float:
        """The part of the squared norm of matrices that each task's first floor(side / N) directions hold."""
        parts = [(t.matrix.first, t.sums.gram().diagonal()) for t in self.tensors if t.matrix and t.matrix.exact]
        held = sum(float(np.nansum(first * squares)) for first, squares in parts)
        total = sum(float(squares.sum()) for _, squares in parts)
        return held / total if total else float("nan")


def survey(pool: AlignedPool, names: Sequence[str], look: Look | None = None) -> Iterator[Survey]:
    """The survey so far, after each of the named parameters; the last one is whole."""
    look = look or Look()
    first = -1 if pool.base is not None else 0
    count = len(pool.experts)
    seen = Survey(equal={(a, b) for a in range(first, count) for b in range(a + 1, count)})
    for index, name in enumerate(names):
        if index + 1 < len(names):
            pool.prefetch(names[index + 1])
        _see(seen, pool.group(name), look)
        yield seen
    if not names:
        yield seen


def diagnosis(pool: AlignedPool, surveys: Sequence[Survey]) -> Diagnosis:
    """What the surveys of all processes say together.

    Raises:
        CheckpointError: there is no finite floating parameter.
    """
    place = {name: index for index, name in enumerate(pool.reference)}
    tensors = sorted((tensor for part in surveys for tensor in part.tensors), key=lambda t: place[t.name])
    broken = {name: models for part in surveys for name, models in part.broken.items()}
    if not tensors:
        found = f"none of {len(place)} tensors is floating, finite and not empty"
        raise CheckpointError(Fault(pool.reference.source, found, "weights"))
    magnitudes = reduce(add, [part.magnitudes for part in surveys if part.magnitudes is not None])
    names = [*pool.experts, BASE]  # the base is number -1
    equal = sorted(set.intersection(*(part.equal for part in surveys)))
    integers = sorted(name for part in surveys for name in part.integers)
    pairs = tuple((names[a], names[b]) for a, b in equal)
    return Diagnosis(tuple(pool.experts), tuple(tensors), magnitudes.top_share(), pairs, broken, tuple(integers))


def diagnose(pool: AlignedPool, look: Look | None = None) -> Diagnosis:
    """The diagnosis of a pool, in this process."""
    seen = Survey()
    for state in survey(pool, list(pool.reference), look):
        seen = state
    return diagnosis(pool, [seen])


def layer_name(name: str) -> str:
    """The layer that a parameter belongs to, such as `encoder.layers.3`; its module where names have no number."""
    layer = layer_of(name)
    if layer is None:
        return name.rpartition(".")[0] or name
    stack, number = layer
    return f"{stack}.{number}" if stack else str(number)


def kind_name(name: str) -> str:
    """A parameter's name with `*` for every number."""
    return _NUMBER.sub(r"\1*", name)


def off_diagonal(matrix: Array) -> float:
    """The mean over pairs i < j of a symmetric matrix; NaN without any."""
    return nan_mean(matrix[np.triu_indices(len(matrix), 1)])


def nan_mean(values: Array | Sequence[float]) -> float:
    """The mean of the values that are numbers; NaN without any."""
    found = np.asarray(values, dtype=np.float64)
    found = found[~np.isnan(found)]
    return float(found.mean()) if found.size else float("nan")


def _see(seen: Survey, group: TensorGroup, look: Look) -> None:
    """Add one parameter to the survey."""
    seen.equal = equal_models(group, seen.equal)
    tensors = [*group.experts, *(() if group.base is None else (group.base,))]
    if not group.numel:
        return
    if not all(tensor.is_floating_point() for tensor in tensors):
        if any(not tensor.equal(tensors[0].to(tensor.dtype)) for tensor in tensors[1:]):
            seen.integers.append(group.name)
        return
    sums, magnitudes = entrywise(group, look.entries)
    if not np.isfinite(sums.products).all():
        seen.broken[group.name] = _broken(group)
        return
    matrix = matrix_traits(group, look.exact_side, look.directions) if look.matrices else None
    seen.tensors.append(TensorTraits(group.name, tuple(group.experts[0].shape), sums, magnitudes.top_share(), matrix))
    seen.magnitudes = magnitudes if seen.magnitudes is None else seen.magnitudes + magnitudes


def _broken(group: TensorGroup) -> tuple[str, ...]:
    models = dict(zip(group.expert_names, group.experts, strict=True))
    if group.base is not None:
        models[BASE] = group.base
    return tuple(name for name, tensor in models.items() if not bool(tensor.isfinite().all()))


def _part(name: str, tensors: Sequence[TensorTraits]) -> Part:
    sums = reduce(add, (tensor.sums for tensor in tensors))
    return Part(name, sums, tuple(tensor.matrix for tensor in tensors if tensor.matrix is not None))


def _grouped(tensors: Sequence[TensorTraits], name_of: Callable[[str], str]) -> tuple[Part, ...]:
    groups: dict[str, list[TensorTraits]] = {}
    for tensor in tensors:
        groups.setdefault(name_of(tensor.name), []).append(tensor)
    return tuple(_part(name, groups[name]) for name in sorted(groups, key=_natural))


def _natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts numbers by value."""
    return [(0, int(piece)) if piece.isdigit() else (1, piece) for piece in re.split(r"(\d+)", name) if piece]
