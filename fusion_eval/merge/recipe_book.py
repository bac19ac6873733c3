"""A recipe file with its models: every document merged in turn, the last one being the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.merge.group import TensorGroup
from fusion_eval.merge.recipe import ModelReference, Recipe, RecipeFile
from fusion_eval.merge.recipe_config import chat_template, merged_config, merged_generation
from fusion_eval.merge.recipe_material import Material
from fusion_eval.merge.recipe_order import used_models
from fusion_eval.merge.recipe_plan import RuleMaker, Segment, merged, segments
from fusion_eval.merge.recipe_vocabulary import in_one_vocabulary, require_one_vocabulary, with_tied_heads

Opener = Callable[[ModelReference, Material | None], Material]
"""Opens a model; given the material of an earlier document, puts the reference's adapter on that."""


@runtime_checkable
class HasBook(Protocol):
    """A model pool whose models are those of a recipe."""

    @property
    def book(self) -> RecipeBook:
        """The recipe with its models."""


class RecipeBook:
    """Recipes and how to open their models.

    Args:
        file: the recipes.
        open_model: opens a model.
    """

    def __init__(self, file: RecipeFile, open_model: Opener) -> None:
        self.file, self._open = file, open_model
        self._opened: dict[ModelReference, Material] = {}

    @property
    def final(self) -> Recipe:
        """The document whose result is the file's."""
        return self.file.documents[-1]

    def models(self) -> tuple[ModelReference, ...]:
        """The models that are opened from outside, each once, in the order of the documents."""
        names = {document.name for document in self.file.documents if document.name is not None}
        found = [ref for document in self.file.documents for ref in document.models if ref.path not in names]
        return tuple(dict.fromkeys(found))

    def material(self, ref: ModelReference) -> Material:
        """A model from outside, opened once."""
        if ref not in self._opened:
            self._opened[ref] = self._open(ref, None)
        return self._opened[ref]

    def result(self, make: RuleMaker, seed: int = 0) -> Material:
        """The result of the last document.

        Args:
            make: the rule of a segment.
            seed: the run's seed.

        Raises:
            FusionEvalError: models that cannot be opened, or that do not fit each other.
        """
        made: dict[str, Material] = {}
        for document in self.file.documents:
            result = _made(document, self._materials(document, made), make, seed)
            made[document.name or ""] = result
        return result

    def outline(self) -> Material:
        """The result without a method: names, shapes, config and tokenizer; its values cannot be read."""
        return self.result(lambda segment: _unread)

    def faults(self, check: Callable[[Segment], Sequence[Fault]]) -> list[Fault]:
        """What is wrong with the models, and what `check` finds in the segments, before a weight is read."""
        found: list[Fault] = []
        for ref in self._outside():
            try:
                self.material(ref)
            except FusionEvalError as error:
                found += error.faults
        if found:
            return list(dict.fromkeys(found))
        made: dict[str, Material] = {}
        for document in self.file.documents:
            try:
                materials = self._materials(document, made)
                made[document.name or ""] = _made(document, materials, lambda segment: _unread, 0)
                checkpoints, _ = in_one_vocabulary(document, materials, with_tied_heads(materials))
                found += [fault for segment in segments(document, checkpoints, 0) for fault in check(segment)]
            except FusionEvalError as error:
                return [*found, *error.faults]
        return found

    def _outside(self) -> list[ModelReference]:
        names = {document.name for document in self.file.documents if document.name is not None}
        refs = [ref for document in self.file.documents for ref in used_models(document) if ref.path not in names]
        return list(dict.fromkeys(refs))

    def _materials(self, document: Recipe, made: Mapping[str, Material]) -> dict[ModelReference, Material]:
        found = {}
        for ref in used_models(document):
            if ref.path in made and ref.path:
                earlier = made[ref.path]
                found[ref] = earlier if ref.adapter is None else self._open(ref, earlier)
            else:
                found[ref] = self.material(ref)
        return found


def _made(document: Recipe, materials: Mapping[ModelReference, Material], make: RuleMaker, seed: int) -> Material:
    checkpoints, target = in_one_vocabulary(document, materials, with_tied_heads(materials))
    result = merged(document, checkpoints, make, seed)
    if target is None:
        require_one_vocabulary(document, materials, checkpoints, result)
    donor = materials[document.models[0]]
    tokenizer = target or donor.tokenizer
    template = chat_template(document, materials)
    changed = donor.changed or (target is not None and target != donor.tokenizer)
    if template is not None:
        if tokenizer is None:
            raise ConfigError(Fault(document.where, "chat_template of models without a tokenizer", "a tokenizer"))
        changed = changed or template != tokenizer.template
        tokenizer = replace(tokenizer, template=template)
    config = merged_config(document, donor, result, target)
    generation = merged_generation(donor, target)
    return Material(result, config, generation, tokenizer, donor.origin, changed)


def _unread(group: TensorGroup) -> Tensor:
    raise AssertionError("an outline's values cannot be read")
