"""From a recipe and its models to merges: which tensors of which models meet, and with which parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

import torch

from fusion_eval.errors import AlignmentError, ConfigError, Fault, FusionEvalError, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.engine import AlignedPool, MergedCheckpoint
from fusion_eval.merge.group import Rule
from fusion_eval.merge.layers import layer_positions
from fusion_eval.merge.recipe import Input, ModelReference, Module, Recipe, Scalar, Settings, Slice
from fusion_eval.merge.recipe_contract import INPUT, OPTIONAL, REQUIRED, Contract
from fusion_eval.merge.recipe_layers import Piece, layered, stack_of
from fusion_eval.merge.recipe_modules import modules_of
from fusion_eval.merge.views import Composed, Part

_VOCABULARY_HINT: Final = "Vocabularies differ? Set tokenizer: {source: union}."


@dataclass(frozen=True, slots=True)
class Resolver:
    """The parameters of every tensor of a segment.

    Args:
        contract: what the method takes.
        places: settings of the slice, the module and the recipe, in order of precedence.
        own: settings of each expert, in the pool's order.
        positions: depth of each tensor in its slice.
        stored: for each expert, names of tensors in the model where they differ.
    """

    contract: Contract
    places: tuple[Settings, ...]
    own: tuple[Settings, ...]
    positions: Mapping[str, float] = field(default_factory=dict)
    stored: tuple[Mapping[str, str], ...] = ()

    def shared(self, name: str) -> dict[str, Any]:
        """The merge's parameters for a tensor."""
        return {key: self._value(key, self.places, name, name) for key in self.contract.shared}

    def each(self, name: str) -> list[dict[str, Any]]:
        """Each expert's parameters for a tensor; filters see the tensor's name in that expert."""
        found = []
        for index, settings in enumerate(self.own):
            source = self.stored[index].get(name, name) if self.stored else name
            places = (settings, *self.places)
            found.append({key: self._value(key, places, source, name) for key in self.contract.own})
        return found

    def missing(self, name: str) -> list[tuple[str, int | None]]:
        """Parameters without a value for a tensor, with the expert that lacks it."""
        shared = [(key, None) for key, value in self.shared(name).items() if value is None]
        each = [(key, i) for i, values in enumerate(self.each(name)) for key, value in values.items() if value is None]
        return [*shared, *each]

    def _value(self, key: str, places: Sequence[Settings], source: str, name: str) -> Scalar | None:
        for place in places:
            if key in place:
                value = place[key].value(source, self.positions.get(name, 0.0))
                if value is not None:
                    return value
        options = self.contract.own if key in self.contract.own else self.contract.shared
        return options[key].default


@dataclass(frozen=True, slots=True)
class Segment:
    """Tensors that are merged in one way.

    Args:
        recipe: the document.
        pool: the models, under the names of the result.
        resolver: the parameters.
        where: the line.
    """

    recipe: Recipe
    pool: AlignedPool
    resolver: Resolver
    where: str


RuleMaker = Callable[[Segment], Rule]


class RecipeMerge(MergedCheckpoint):
    """A segment as a checkpoint, in the recipe's dtype."""

    def __init__(self, rule: Rule, pool: AlignedPool, dtypes: Mapping[str, torch.dtype]) -> None:
        super().__init__(rule, pool)
        self._dtypes = dtypes

    def spec(self, name: str) -> TensorSpec:
        """The reference's shape with the dtype of the result."""
        spec = super().spec(name)
        return TensorSpec(spec.shape, self._dtypes[name]) if name in self._dtypes else spec

    def key(self) -> str | None:
        """The merge's key and the dtypes."""
        key = super().key()
        return None if key is None else f"{key}|{sorted(set(map(str, self._dtypes.values())))}"


def merged(recipe: Recipe, models: Mapping[ModelReference, Checkpoint], make: RuleMaker, seed: int) -> Checkpoint:
    """The merge that a document describes.

    Args:
        recipe: the document.
        models: the weights of every model that it names, in one vocabulary.
        make: the rule of a segment.
        seed: the run's seed.

    Raises:
        ConfigError: parameters without a value, modules or layers that are not there.
        AlignmentError: tensors that differ in name or shape.
    """
    parts = [RecipeMerge(make(segment), segment.pool, _dtypes(segment)) for segment in segments(recipe, models, seed)]
    if len(parts) == 1:
        return parts[0]
    names = {name: Part(part, name) for part in parts for name in part}
    tied = {name: kept for part in parts for name, kept in part.tied.items() if kept in names and name not in names}
    return Composed(names, " + ".join(part.source for part in parts), tied)


def segments(recipe: Recipe, models: Mapping[ModelReference, Checkpoint], seed: int) -> list[Segment]:
    """The segments of a document, in the order of the result's tensors.

    Raises:
        FusionEvalError: what `merged` raises.
    """
    found: list[Segment] = []
    faults: list[Fault] = []
    kinds: list[type[FusionEvalError]] = []
    for module, checkpoints in modules_of(recipe, models):
        for build in _builders(recipe, module, checkpoints, seed):
            try:
                found.append(build())
            except FusionEvalError as error:
                faults += [_hinted(fault, recipe) for fault in error.faults]
                kinds.append(type(error))
    faults += [fault for segment in found for fault in _parameter_faults(segment)]
    if faults:
        raise (kinds[0] if kinds else ConfigError)(*dict.fromkeys(faults))
    return found


def _hinted(fault: Fault, recipe: Recipe) -> Fault:
    if "differ in shape" in fault.found and recipe.tokenizer is None:
        return replace(fault, do=_VOCABULARY_HINT)
    return fault


def _builders(
    recipe: Recipe, module: Module, models: Mapping[ModelReference, Checkpoint], seed: int
) -> Iterator[Callable[[], Segment]]:
    if any(each.layers is None for part in module.slices for each in part.inputs):
        yield lambda: _whole(recipe, module, models, seed)
        return
    stack = stack_of([models[each.model] for part in module.slices for each in part.inputs], module.where)
    offset = 0
    for index, part in enumerate(module.slices):
        ends = (index == 0, index == len(module.slices) - 1)
        yield lambda part=part, ends=ends, offset=offset: _layers(  # type: ignore[misc]
            recipe, module, part, (stack, offset, *ends), models, seed
        )
        first = part.inputs[0].layers
        offset += first[1] - first[0] if first else 0


def _whole(recipe: Recipe, module: Module, models: Mapping[ModelReference, Checkpoint], seed: int) -> Segment:
    """Whole models."""
    part = module.slices[0]
    pieces = [Piece(each, models[each.model]) for each in part.inputs]
    if recipe.base is not None and all(each.model != recipe.base for each in part.inputs):
        pieces.append(Piece(Input(recipe.base, where=part.where), models[recipe.base]))
    names = dict.fromkeys(name for piece in pieces for name in piece.checkpoint)
    return _segment(recipe, module, part, pieces, layer_positions(names), seed)


def _layers(
    recipe: Recipe,
    module: Module,
    part: Slice,
    place: tuple[str, int, bool, bool],
    models: Mapping[ModelReference, Checkpoint],
    seed: int,
) -> Segment:
    """One slice: layers, and what lies before the first or after the last."""
    stack, offset, first, last = place
    pieces = [layered(each, models[each.model], stack, offset, (first, last)) for each in part.inputs]
    count = len(range(*part.inputs[0].layers or (0, 0)))
    positions = {
        name: (number - offset) / (count - 1) if count > 1 else 1.0
        for piece in pieces
        for name, number in piece.numbers.items()
    }
    return _segment(recipe, module, part, pieces, positions, seed)


def _segment(
    recipe: Recipe, module: Module, part: Slice, pieces: Sequence[Piece], positions: Mapping[str, float], seed: int
) -> Segment:
    contract, wanted = recipe.contract, part.base or recipe.base
    base = next((piece for piece in pieces if piece.input.model == wanted), None)
    if contract.base == INPUT:
        base = None
    elif base is None and (contract.base == REQUIRED or (contract.base == OPTIONAL and wanted is not None)):
        do = "Name it among the sources, with the layers that these descend from."
        raise ConfigError(Fault(part.where, f"a slice without layers of the base model '{wanted}'", do=do))
    experts = [piece for piece in pieces if piece is not base]
    if base is not None and not experts:  # nothing is added to it
        recipe, experts, base = (
            replace(recipe, method="passthrough", base=None),
            [replace(base, input=_bare(base))],
            None,
        )
        contract = recipe.contract
    names: list[str] = []
    for piece in experts:
        name, count = str(piece.input.model), 2
        while name in names:
            name, count = f"{piece.input.model} ({count})", count + 1
        names.append(name)
    try:
        checkpoints = {name: piece.checkpoint for name, piece in zip(names, experts, strict=True)}
        pool = AlignedPool(None if base is None else base.checkpoint, checkpoints, seed)
    except AlignmentError as error:
        raise AlignmentError(*(replace(f, where=f"{part.where}, {f.where}") for f in error.faults)) from error
    places = (part.parameters, module.parameters, recipe.parameters)
    own = tuple(piece.input.parameters for piece in experts)
    stored = tuple(piece.stored for piece in experts)
    return Segment(recipe, pool, Resolver(contract, places, own, positions, stored), part.where)


def _bare(piece: Piece) -> Input:
    return replace(piece.input, parameters={})


def _dtypes(segment: Segment) -> dict[str, torch.dtype]:
    """The dtype of each floating tensor of the result: `out_dtype`, `dtype`, or what holds all of its inputs."""
    recipe, pool = segment.recipe, segment.pool
    chosen = recipe.out_dtype or recipe.dtype
    found = {}
    for name in pool.reference:
        if not pool.reference.spec(name).dtype.is_floating_point:
            continue
        if chosen is not None:
            found[name] = getattr(torch, chosen)
        else:
            found[name] = reduce(torch.promote_types, (spec.dtype for spec in specs(pool, name)))
    return found


def specs(pool: AlignedPool, name: str) -> list[TensorSpec]:
    """The specs of one tensor in every model of a pool that stores it under this name."""
    return [model.spec(name) for model in pool.models if name in model]


def _parameter_faults(segment: Segment) -> list[Fault]:
    """Parameters that have no value for some tensor: one fault for each."""
    found: dict[tuple[str, int | None], list[str]] = {}
    reference = segment.pool.reference
    for name in reference:
        if reference.spec(name).dtype.is_floating_point:
            for gap in segment.resolver.missing(name):
                found.setdefault(gap, []).append(name)
    experts = list(segment.pool.experts)
    faults = []
    for (key, expert), names in found.items():
        who = "" if expert is None else f" of model '{experts[expert]}'"
        what = f"{segment.recipe.method} needs '{key}'{who}, which has no value for {len(names)} tensors"
        faults.append(Fault(segment.where, f"{what}: {listed(names)}", do="Give it, or add an entry without filter."))
    return faults
