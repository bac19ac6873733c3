"""What a step of a merge is, and the state that steps hand on."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fusion_eval.errors import Fault, did_you_mean
from fusion_eval.merge.group import TensorGroup
from fusion_eval.merge.select import Sample, magnitude_thresholds, streamed_largest
from fusion_eval.merge.setting import Place, Range, Setting, key_faults, resolve, setting_faults

Weights = Sequence[Setting] | Mapping[str, Setting] | float | None
"""One setting per expert in the pool's order, a mapping from expert names, one for all, or None: 1 each."""

_HELD = 1 << 32  # about one entry in eighty is held while a bracket is searched

DELTAS, COMBINE, MERGED = "deltas", "combine", "merged"
"""The phases of a pipeline: steps on task vectors, the one step that combines them, steps on the merged vector."""


@dataclass(frozen=True, slots=True)
class State:
    """One tensor on its way through a pipeline. Steps return a new state and change no tensor in place.

    Args:
        group: the tensors of the pool.
        origin: what task vectors start from (the base, the average), or None: they are the weights themselves.
        deltas: the task vectors, one per expert, as the steps before left them.
        merged: the combined vector, from the combining step on.
        position: the tensor's depth in the network, from 0 to 1.
        matrix: whether the tensor is a matrix in the sense of singular values, not a table, vector or kernel.
        lift: what brings a combined vector back from the space into which a step moved the task vectors.
    """

    group: TensorGroup
    origin: Tensor | None
    deltas: tuple[Tensor, ...]
    merged: Tensor | None = None
    position: float = 0.0
    matrix: bool = True
    lift: Callable[[Tensor], Tensor] | None = None

    def value(self, setting: Setting, expert: int | None = None) -> float:
        """The number that a setting has for this tensor (and expert)."""
        if isinstance(setting, int | float):
            return float(setting)
        names = self.group.expert_names
        who = "" if expert is None or not names else names[expert]
        return resolve(setting, Place(self.group.name, self.position, who, names))

    def weights(self, weights: Weights) -> list[float]:
        """One number per expert."""
        count = len(self.deltas)
        if weights is None:
            return [1.0] * count
        if isinstance(weights, Sequence):
            return [self.value(weight, index) for index, weight in enumerate(weights)]
        return [self.value(weights, index) for index in range(count)]

    def with_deltas(self, deltas: Sequence[Tensor]) -> State:
        """The state with other task vectors."""
        # several times faster than `dataclasses.replace`
        return State(self.group, self.origin, tuple(deltas), self.merged, self.position, self.matrix, self.lift)

    def with_merged(self, merged: Tensor) -> State:
        """The state with the combined vector, brought back by `lift`."""
        merged = merged if self.lift is None else self.lift(merged)
        return State(self.group, self.origin, self.deltas, merged, self.position, self.matrix)

    def task_vectors(self) -> tuple[Tensor, ...]:
        """The task vectors before any step."""
        if self.origin is None:
            return self.group.values()
        return tuple(value - self.origin for value in self.group.values())

    def required(self) -> Tensor:
        """The combined vector, in steps that come after the combining one."""
        assert self.merged is not None, "no step has combined the task vectors yet"
        return self.merged


class View(Protocol):
    """What a step may look at before it works: one tensor, or every tensor of a pool, with the earlier steps done."""

    @property
    def numel(self) -> int:
        """Number of elements of one task vector in the view."""

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape; of a whole pool, that of a vector."""

    def states(self) -> Iterator[State]:
        """One piece after another, often flat slices that fit the cache; each call starts anew."""

    def sampled(self) -> Iterator[State]:
        """Some of the pieces, which stand for all."""


@dataclass(frozen=True, slots=True)
class WholeView:
    """One tensor, whole."""

    state: State

    @property
    def numel(self) -> int:
        """Number of elements of the tensor."""
        return self.state.deltas[0].numel()

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.state.deltas[0].shape

    def states(self) -> Iterator[State]:
        """The state, once."""
        yield self.state

    def sampled(self) -> Iterator[State]:
        """The state, once."""
        yield self.state


ENTRYWISE, SCANNED, ROWS, WHOLE = 0, 1, 2, 3
"""What a step must see of a tensor: entries; all of it once, then entries; all of it once, then rows; all at once."""


class Step(ABC):
    """One step of a merge; its hyperparameters are its fields, named as the method's options.

    A step that must see all of a tensor first writes `scan`, all others write `__call__`. Class attributes say what the
    fields may hold: `settings` are numbers that may differ by tensor, depth and expert; `choices` are words;
    `per_expert` are weights.
    """

    __slots__ = ()
    phase: ClassVar[str]
    reach: ClassVar[int] = ENTRYWISE
    settings: ClassVar[Mapping[str, Range]] = {}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    per_expert: ClassVar[tuple[str, ...]] = ()

    def __call__(self, state: State) -> State:
        """The state after this step."""
        return self.scan(WholeView(state))(state)

    def scan(self, view: View) -> Step:
        """The step for one tensor with what had to be known of all of it.

        It is called on consecutive slices (or blocks of rows) in order, so it may draw random numbers as it goes.
        """
        return self

    def bind(self, view: View) -> Step:
        """The step with what it must know of the whole pool; passes over all tensors happen here."""
        return self

    def uses_depth(self) -> bool:
        """Whether a tensor's depth in the network matters: a setting is a gradient."""
        values = [getattr(self, key) for key in self.settings]
        for key in self.per_expert:
            weights = getattr(self, key)
            values += weights if isinstance(weights, Sequence) else [weights]
        return any(map(_has_gradient, values))

    def faults(self, where: str) -> list[Fault]:
        """Fields that hold what they may not."""
        faults = []
        for key, allowed in self.settings.items():
            faults += setting_faults(f"{where}.{key}", getattr(self, key), allowed)
        for key in self.per_expert:
            value = getattr(self, key)
            if value is not None:
                faults += setting_faults(f"{where}.{key}", value, Range())
        for key, options in self.choices.items():
            faults += choice_faults(f"{where}.{key}", getattr(self, key), options)
        return faults

    def pool_faults(self, where: str, names: Sequence[str], experts: Sequence[str]) -> list[Fault]:
        """Fields that do not fit a pool."""
        faults = []
        for key in (*self.settings, *self.per_expert):
            faults += key_faults(f"{where}.{key}", getattr(self, key), names, experts)
        for key in self.per_expert:
            value = getattr(self, key)
            if isinstance(value, Sequence) and len(value) != len(experts):
                expected = f"{len(experts)}, one per expert ({', '.join(experts)})"
                faults.append(Fault(f"{where}.{key}", f"{len(value)} numbers", expected))
        return faults


def largest(
    view: View,
    scores: Callable[[State], Sequence[Tensor]],
    ranks: Sequence[Sequence[int]],
    *,
    magnitudes: bool = False,
) -> list[list[float]]:
    """For each of several scores of every entry in a view, its values of the given ranks, 1 being the largest."""
    sample = _sample(view, scores, len(ranks))
    return streamed_largest(lambda: map(scores, view.states()), ranks, magnitudes=magnitudes, sample=sample)


def thresholds(view: View, densities: Sequence[float]) -> list[float]:
    """For each task vector of a view, the magnitude from which on a share of its entries lies."""
    sample = _sample(view, _deltas, len(densities))
    return magnitude_thresholds(lambda: map(_deltas, view.states()), densities, view.numel, sample=sample)


def _sample(view: View, scores: Callable[[State], Sequence[Tensor]], rows: int) -> Sample | None:
    """What brackets are guessed from: none where the entries inside of them would fill the memory."""
    return Sample(lambda: map(scores, view.sampled()), view.numel) if view.numel * rows < _HELD else None


def _deltas(state: State) -> Sequence[Tensor]:
    return state.deltas


def _has_gradient(setting: Any) -> bool:
    if isinstance(setting, Mapping):
        return any(map(_has_gradient, setting.values()))
    return isinstance(setting, Sequence) and not isinstance(setting, str)


def choice_faults(where: str, value: Any, options: Sequence[str]) -> list[Fault]:
    """The fault of a word that is none of the options."""
    if value in options:
        return []
    return [Fault(where, f"{value!r}", f"one of {', '.join(options)}", did_you_mean(str(value), options))]
