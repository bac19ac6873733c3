"""mergekit recipes, unmodified, and our own."""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from fusion_eval.errors import ConfigError, Fault, FusionEvalError, MethodError
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.group import Rule
from fusion_eval.merge.recipe import RecipeFile
from fusion_eval.merge.recipe_book import HasBook
from fusion_eval.merge.recipe_plan import Segment
from fusion_eval.merge.recipe_reader import parse_recipe, read_recipe
from fusion_eval.method.base_method import Method, Pool
from fusion_eval.method.recipe_compat import compat_rule
from fusion_eval.method.recipe_rules import rule_faults, rule_of
from fusion_eval.method.step import Step

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch import nn

    from fusion_eval.merge.per_task import TaskCheckpoints


class Recipe(Method):
    """What a recipe file says: a mergekit YAML, or the `recipe.yml` beside a merge of ours. No paper.

    Arithmetic is in float32 with one rounding to the recipe's dtype.

    Args:
        path: the file.
        compat: use mergekit's own arithmetic, in the dtype of the inputs, with its constants.
        unknown: `error`, or `ignore`: keys of the recipe that nobody knows have no effect, as in mergekit.
    """

    min_experts: ClassVar[int] = 0

    def __init__(self, path: str, compat: bool = False, unknown: str = "error") -> None:
        self.path, self.compat, self.unknown = path, compat, unknown

    @cached_property
    def file(self) -> RecipeFile:
        """The recipes, read once."""
        return read_recipe(self.path, self.unknown)

    def apply(
        self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0
    ) -> Checkpoint | TaskCheckpoints | nn.Module:
        """The merge; a seed in the file counts rather than the run's."""
        seed = seed if self.file.seed is None else self.file.seed
        if self.file.own:
            return built_method(self.file.own["method"]).apply(pool, fabric, seed=seed)
        if not isinstance(pool, HasBook):
            raise MethodError(_wrong_pool(pool))
        return pool.book.result(self._rule, seed).checkpoint

    def faults(self, pool: Pool) -> list[Fault]:
        """Everything wrong with the recipe and its models that can be known before a weight is read."""
        try:
            if self.file.own:
                return built_method(self.file.own["method"]).faults(pool)
            if not isinstance(pool, HasBook):
                return [_wrong_pool(pool)]
            return pool.book.faults(rule_faults)
        except FusionEvalError as error:
            return list(error.faults)

    def recipe(self, seed: int) -> str:
        """The file's text, with what decides the result and it does not say: seed, arithmetic, unknown keys."""
        text = self.file.text.rstrip() + "\n"
        if self.file.own or self.file.seed is not None:
            return text
        said = f"seed: {seed}, compat: {str(self._compat).lower()}"
        said += ", unknown: ignore" if self.unknown == "ignore" else ""
        for added in (f"{text}fusion_eval: {{{said}}}\n", f"{text}---\nfusion_eval: {{{said}}}\n"):
            with suppress(ConfigError):
                again = parse_recipe(added)
                if again.seed == seed and len(again.documents) == len(self.file.documents):
                    return added
        raise ConfigError(
            Fault(self.path, "a text to which no seed can be added", "block style", "End it with a line.")
        )

    @property
    def _compat(self) -> bool:
        return self.compat if self.file.compat is None else self.file.compat

    def _rule(self, segment: Segment) -> Rule:
        return compat_rule(segment) if self._compat else rule_of(segment)


def built_method(node: Any) -> Method:
    """The method that a recipe of ours describes; only methods and their steps are built from a file.

    Raises:
        ConfigError: the target is none, or does not take what is given.
    """
    made = _built(node, "method")
    if not isinstance(made, Method):
        raise ConfigError(Fault("method", f"a {type(made).__name__}", "a _target_ that is a method"))
    return made


def _built(node: Any, where: str) -> Any:
    if isinstance(node, list):
        return [_built(value, f"{where}[{index}]") for index, value in enumerate(node)]
    if not isinstance(node, dict):
        return node
    values = {key: _built(value, f"{where}.{key}") for key, value in node.items() if key != "_target_"}
    if "_target_" not in node:
        return values
    module, _, name = str(node["_target_"]).rpartition(".")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(Fault(f"{where}._target_", f"{node['_target_']} cannot be imported ({error})")) from error
    if not (isinstance(target, type) and issubclass(target, Method | Step)):
        raise ConfigError(Fault(f"{where}._target_", f"{node['_target_']}", "a method or a step of one"))
    try:
        return target(**values)
    except TypeError as error:
        raise ConfigError(Fault(where, str(error), f"what {name} takes")) from error


def _wrong_pool(pool: Pool) -> Fault:
    found = f"{type(pool).__name__}, but a recipe names its models itself"
    return Fault("modelpool", found, "modelpool=recipe", "Leave modelpool out: method=recipe chooses it.")
