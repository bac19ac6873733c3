"""Parts of models that a recipe merges in ways of their own: each tensor belongs to exactly one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fusion_eval.errors import ConfigError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.recipe import ModelReference, Module, Recipe
from fusion_eval.merge.views import subset

DEFAULT: Final = "default"
_PARTS: Final[Mapping[str, str]] = {
    "text_decoder": r"language_model|lm_head",
    "vision_tower": r"vision_tower|vision_model|visual",
    "vision_model": r"vision_model|vision_tower|visual",
    "multi_modal_projector": r"multi_modal_projector|visual\.merger|visual\.deepstack_merger_list",
    "decoder": r"decoder|lm_head|proj_out",
}
"""What mergekit's names of modules stand for, as parts of the names of tensors; other names stand for themselves."""
_REST: Final = (DEFAULT, "text_decoder")
"""Modules that take what no other has, in this order."""


def modules_of(
    recipe: Recipe, models: Mapping[ModelReference, Checkpoint]
) -> Iterator[tuple[Module, Mapping[ModelReference, Checkpoint]]]:
    """Each module with its part of every model; each tensor is in exactly one.

    Raises:
        ConfigError: tensors of several modules or of none, modules without tensors.
    """
    if [module.name for module in recipe.modules] == [DEFAULT]:
        yield recipe.modules[0], models
        return
    names = dict.fromkeys(name for checkpoint in models.values() for name in checkpoint)
    owners = _owners([module.name for module in recipe.modules], names)
    faults = _faults(recipe, owners)
    if faults:
        raise ConfigError(*faults)
    for module in recipe.modules:
        wanted = [name for name, found in owners.items() if found == [module.name]]
        yield module, {ref: subset(c, [name for name in wanted if name in c]) for ref, c in models.items()}


def _owners(modules: Sequence[str], names: Iterable[str]) -> dict[str, list[str]]:
    """{tensor: its modules}."""
    patterns = {
        module: re.compile(rf"(^|\.)({_PARTS.get(module, re.escape(module))})(\.|$)")
        for module in modules
        if module != DEFAULT
    }
    rest = [module for module in _REST if module in modules][:1]
    found = {}
    for name in names:
        owners = [module for module, pattern in patterns.items() if pattern.search(name)]
        if "multi_modal_projector" in owners:  # inside the vision tower of Qwen's
            owners = [module for module in owners if module not in ("vision_tower", "vision_model")]
        found[name] = owners or rest
    return found


def _faults(recipe: Recipe, owners: Mapping[str, Sequence[str]]) -> list[Fault]:
    several = [name for name, found in owners.items() if len(found) > 1]
    homeless = [name for name, found in owners.items() if not found]
    where, faults = recipe.modules[0].where, []
    if several:
        faults.append(Fault(where, f"tensors of several modules: {listed(several)}", "one module each"))
    if homeless:
        do = "Add a module 'default', or one of their names."
        faults.append(Fault(where, f"tensors of no module: {listed(homeless)}", "one module each", do))
    for module in recipe.modules:
        if module.name != DEFAULT and not any(module.name in found for found in owners.values()):
            parts = sorted({part for name in owners for part in name.split(".")[:2] if not part.isdigit()})
            faults.append(Fault(module.where, f"no tensors of a module '{module.name}'", f"one like {listed(parts)}"))
    return faults
