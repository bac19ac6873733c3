"""The documents of a recipe file in the order in which they need each other, and the models that one needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusion_eval.errors import ConfigError, Fault, listed
from fusion_eval.merge.recipe import ModelReference, Recipe
from fusion_eval.merge.recipe_yaml import Source


def in_order(source: Source, recipes: Sequence[Recipe]) -> tuple[Recipe, ...]:
    """Each document after those it uses; the last is the one that no other uses."""
    names = [recipe.name for recipe in recipes if recipe.name is not None]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(Fault(source.file, f"several documents named {listed(twice)}", "one of each name"))
    by_name = {recipe.name: recipe for recipe in recipes}
    uses = {id(r): [by_name[m.path] for m in used_models(r) if m.path in by_name and m.path] for r in recipes}
    used = {id(other) for others in uses.values() for other in others}
    ends = [recipe for recipe in recipes if id(recipe) not in used]
    if len(ends) != 1:
        found = "documents that use each other in a circle" if not ends else f"{len(ends)} documents that no other uses"
        where = ends[1].where if ends else source.file
        raise ConfigError(
            Fault(where, found, "one result, which is built from the others", "Merge it in a file of its own.")
        )
    ordered: list[Recipe] = []
    _visit(ends[0], uses, ordered, ())
    if len(ordered) != len(recipes):
        rest = [recipe for recipe in recipes if recipe not in ordered]
        raise ConfigError(Fault(rest[0].where, "documents that use each other in a circle", "an order"))
    return tuple(ordered)


def _visit(recipe: Recipe, uses: Mapping[int, Sequence[Recipe]], ordered: list[Recipe], path: tuple[int, ...]) -> None:
    if id(recipe) in path:
        raise ConfigError(Fault(recipe.where, f"document '{recipe.name}' uses itself", "an order"))
    for other in uses[id(recipe)]:
        _visit(other, uses, ordered, (*path, id(recipe)))
    if recipe not in ordered:
        ordered.append(recipe)


def used_models(recipe: Recipe) -> list[ModelReference]:
    """Every model that a recipe names: of weights, of the tokenizer, of tokens."""
    found = list(recipe.models)
    if recipe.tokenizer is not None:
        if recipe.tokenizer.source.path not in ("union", "base"):
            found.append(recipe.tokenizer.source)
        found += [token.model for token in recipe.tokenizer.tokens.values() if token.model is not None]
    return list(dict.fromkeys(found))
