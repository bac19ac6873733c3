"""From the text of a recipe to recipes; every fault of the file in one error, with its line and a hint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.merge.recipe import DTYPES, Input, Module, Recipe, RecipeFile, Slice
from fusion_eval.merge.recipe_contract import CONTRACTS, INPUT, REQUIRED, Contract
from fusion_eval.merge.recipe_order import in_order
from fusion_eval.merge.recipe_values import parameters, reference, tokenizer_choice
from fusion_eval.merge.recipe_yaml import Item, Source

OWN_KEY: Final = "fusion_eval"
_DOCUMENT: Final = (
    "merge_method",
    "base_model",
    "models",
    "slices",
    "modules",
    "parameters",
    "dtype",
    "out_dtype",
    "tokenizer",
    "tokenizer_source",
    "chat_template",
    "name",
    "out_path",
    OWN_KEY,
)
_PARTS: Final = ("models", "slices", "modules")
_SLICE: Final = ("sources", "base_model", "parameters", "residual_weight", "merge_method")
_UNKNOWN: Final = ("error", "ignore")
_ELSEWHERE: Final[Mapping[str, str]] = {
    "revision": "Write it behind the model: path@revision.",
    "lora": "Write it behind the model: path+adapter.",
}


def read_recipe(path: str | os.PathLike[str], unknown: str = "error") -> RecipeFile:
    """The recipes in a file.

    Args:
        path: the file.
        unknown: `error`, or `ignore`: keys that nobody knows have no effect, which is noted.

    Raises:
        ConfigError: with every fault of the file.
    """
    place = Path(path).expanduser()
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        beside = [file.name for file in place.parent.glob("*.y*ml")] if place.parent.is_dir() else []
        found = getattr(error, "strerror", None) or "not UTF-8 text"
        hint = did_you_mean(place.name, beside)
        raise ConfigError(Fault("method.path", f"{place} cannot be read ({found})", "a recipe", hint)) from error
    return parse_recipe(text, str(place), unknown)


def parse_recipe(text: str, file: str = "recipe", unknown: str = "error") -> RecipeFile:
    """The recipes in a text; `file` names it in errors.

    Raises:
        ConfigError: with every fault of the text.
    """
    if unknown not in _UNKNOWN:
        raise ConfigError(
            Fault("method.unknown", repr(unknown), " or ".join(_UNKNOWN), did_you_mean(unknown, _UNKNOWN))
        )
    source = Source(file, lenient=unknown == "ignore")
    items = source.documents(text)
    source.lenient = source.lenient or any(_ignores(item) for item in items)
    if not items:
        source.faults.append(Fault(file, "empty", "a recipe"))
    source.raise_faults()
    if len(items) == 1 and isinstance(items[0].value, dict) and "method" in items[0].value:
        return _own(source, items[0], text)
    reader = _Reader(source)
    recipes = [reader.recipe(item) for item in items]
    source.raise_faults()
    found = [recipe for recipe in recipes if recipe is not None]
    if not found:
        raise ConfigError(Fault(file, "no recipe", "a document with merge_method"))
    documents = in_order(source, found)
    return RecipeFile(text, documents, {}, reader.seed, reader.compat, tuple(dict.fromkeys(source.notes)))


def _ignores(item: Item) -> bool:
    """Whether a document says that unknown keys have no effect."""
    ours = item.value.get(OWN_KEY) if isinstance(item.value, dict) else None
    said = ours.value.get("unknown") if ours is not None and isinstance(ours.value, dict) else None
    return said is not None and said.value == "ignore"


def _own(source: Source, item: Item, text: str) -> RecipeFile:
    """A recipe in our own spelling: configuration nodes."""
    entries = source.keys(item, ("method", "modelpool", "seed", "inputs", "version"), "a recipe with 'method'")
    for key in ("method", "modelpool"):
        node = entries.get(key)
        if node is None:
            continue  # a recipe of models that were in memory names none
        if not isinstance(node.value, dict) or "_target_" not in node.value:
            source.fault(node, f"{key} is {node.kind()}", "a mapping with _target_")
    seed = _seed(source, entries.get("seed"))
    source.raise_faults()
    own: dict[str, Any] = {key: entries[key].plain() for key in ("method", "modelpool") if key in entries}
    return RecipeFile(text, (), own, seed)


def _seed(source: Source, item: Item | None) -> int | None:
    if item is None or item.value is None:
        return None
    if isinstance(item.value, int) and not isinstance(item.value, bool) and item.value >= 0:
        return item.value
    source.fault(item, f"seed is {item.kind()}", "a whole number")
    return None


class _Reader:
    """Reads documents, and notes what has no effect."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.seed: int | None = None
        self.compat: bool | None = None

    def recipe(self, item: Item) -> Recipe | None:
        """One document, or None after a fault that leaves none, and for one of our settings alone."""
        source = self.source
        entries = {key: each for key, each in self._document(item).items() if each.value is not None}
        self._settings_of_ours(entries.pop(OWN_KEY, None))
        if not entries:
            return None
        if "merge_method" not in entries:
            source.fault(item, "no 'merge_method'", f"one of {', '.join(CONTRACTS)}")
            return None
        method = source.choice(entries["merge_method"], CONTRACTS, "merge_method")
        if not method:
            return None
        contract = CONTRACTS[method]
        base = reference(source, entries.get("base_model"), "base_model")
        top = parameters(source, entries.get("parameters"), method, contract, contract.names)
        modules = self._modules(item, entries, method, contract)
        recipe = Recipe(
            method,
            modules,
            base,
            top,
            self._dtype(entries, "dtype"),
            self._dtype(entries, "out_dtype"),
            tokenizer_choice(source, item, entries),
            source.text(entries["chat_template"], "chat_template") if "chat_template" in entries else None,
            self._name(entries),
            source.where(item.line),
        )
        self._check(item, recipe)
        return recipe

    def _document(self, item: Item) -> dict[str, Item]:
        method = item.value.get("merge_method") if isinstance(item.value, dict) else None
        contract = None if method is None else CONTRACTS.get(str(method.value))
        hints = dict.fromkeys(() if contract is None else contract.names, "Put it under 'parameters'.")
        return self.source.keys(item, _DOCUMENT, "a recipe", hints)

    def _name(self, entries: Mapping[str, Item]) -> str | None:
        """What other documents call the result: its name, or where mergekit's old multi-document files put it."""
        key = "name" if "name" in entries else "out_path"
        return self.source.text(entries[key], key) if key in entries else None

    def _settings_of_ours(self, item: Item | None) -> None:
        if item is None:
            return
        entries = self.source.keys(item, ("seed", "compat", "unknown", "version", "inputs"), OWN_KEY)
        self.seed = _seed(self.source, entries.get("seed"))
        if "compat" in entries:
            self.compat = bool(entries["compat"].value)

    def _dtype(self, entries: Mapping[str, Item], key: str) -> str | None:
        if key not in entries or entries[key].value is None:
            return None
        item = entries[key]
        plain = str(item.value).removeprefix("torch.")
        return self.source.choice(Item(plain, item.line), DTYPES, key) or None

    def _modules(self, item: Item, entries: Mapping[str, Item], method: str, contract: Contract) -> tuple[Module, ...]:
        given = [key for key in _PARTS if key in entries]
        if len(given) != 1:
            found = f"{' and '.join(given)} together" if given else "no models"
            self.source.fault(item, found, "exactly one of models, slices and modules")
        if not given:
            return ()
        if given != ["modules"]:
            slices = self._slices(entries, method, contract)
            return (Module("default", slices, {}, self.source.where(entries[given[0]].line)),)
        modules: list[Module] = []
        whole = entries["modules"]
        for name, each in self.source.keys(whole, list(whole.value or ()), "modules").items():
            inner = self.source.keys(each, ("models", "slices", "parameters"), f"module '{name}'")
            settings = parameters(self.source, inner.get("parameters"), method, contract, contract.names)
            if ("models" in inner) == ("slices" in inner):
                self.source.fault(each, f"module '{name}' has both or neither", "models or slices")
                continue
            modules.append(Module(name, self._slices(inner, method, contract), settings, self.source.where(each.line)))
        return tuple(modules)

    def _slices(self, entries: Mapping[str, Item], method: str, contract: Contract) -> tuple[Slice, ...]:
        if "models" in entries:
            inputs = self._inputs(entries["models"], method, contract, whole=True)
            return (Slice(inputs, where=self.source.where(entries["models"].line)),)
        found = []
        for each in self.source.items(entries["slices"], "slices") if "slices" in entries else ():
            inner = self.source.keys(each, _SLICE, "a slice")
            self._repeated(inner.get("merge_method"), method)
            if "sources" not in inner:
                self.source.fault(each, "a slice without 'sources'", "a list of models with layer_range")
                continue
            if "residual_weight" in inner:
                self.source.note(inner["residual_weight"], "residual_weight has no effect")
            base = reference(self.source, inner.get("base_model"), "base_model")
            settings = parameters(self.source, inner.get("parameters"), method, contract, contract.names)
            inputs = self._inputs(inner["sources"], method, contract, whole=False)
            self._check_lengths(each, inputs)
            found.append(Slice(inputs, base, settings, self.source.where(each.line)))
        return tuple(found)

    def _repeated(self, item: Item | None, method: str) -> None:
        if item is not None and item.value != method:
            do = "Make it a document of its own, with a name, and use that as a model."
            self.source.fault(item, f"merge_method {item.kind()} in a slice of {method}", "one method per document", do)

    def _inputs(self, item: Item, method: str, contract: Contract, *, whole: bool) -> tuple[Input, ...]:
        found = []
        keys = ("model", "parameters") if whole else ("model", "layer_range", "parameters")
        hints = {**_ELSEWHERE, **dict.fromkeys(contract.names, "Put it under 'parameters'.")}
        for each in self.source.items(item, "models" if whole else "sources"):
            if isinstance(each.value, str):
                each = Item({"model": each}, each.line)
            inner = self.source.keys(each, keys, "a model" if whole else "a source", hints)
            model = reference(self.source, inner.get("model"), "model")
            if model is None:
                if "model" not in inner:
                    self.source.fault(each, "no 'model'", "a folder or a hub id")
                continue
            layers = None if whole else self._layers(each, inner.get("layer_range"))
            settings = parameters(self.source, inner.get("parameters"), method, contract, tuple(contract.own))
            found.append(Input(model, layers, settings, self.source.where(each.line)))
        return tuple(found)

    def _layers(self, each: Item, item: Item | None) -> tuple[int, int] | None:
        expected = "[first, after the last] with 0 <= first < after the last"
        if item is None:
            self.source.fault(each, "a source without 'layer_range'", expected)
            return None
        value = item.plain()
        good = isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)
        if good and 0 <= value[0] < value[1]:
            return value[0], value[1]
        self.source.fault(item, f"layer_range is {value}", expected)
        return None

    def _check_lengths(self, item: Item, inputs: Sequence[Input]) -> None:
        lengths = {each.layers[1] - each.layers[0] for each in inputs if each.layers is not None}
        if len(lengths) > 1:
            found = f"sources of {listed([str(n) for n in sorted(lengths)])} layers"
            self.source.fault(item, found, "sources of equally many layers")

    def _check(self, item: Item, recipe: Recipe) -> None:
        """Numbers of models, and the base."""
        contract, source = recipe.contract, self.source
        if (
            contract.base == REQUIRED
            and recipe.base is None
            and not all(part.base for module in recipe.modules for part in module.slices)
        ):
            source.fault(item, f"{recipe.method} without 'base_model'", "the model that the others descend from")
        for module in recipe.modules:
            for part in module.slices:
                base = part.base or recipe.base
                self._check_slice(recipe, part, [each for each in part.inputs if each.model != base], base is not None)

    def _check_slice(self, recipe: Recipe, part: Slice, others: Sequence[Input], has_base: bool) -> None:
        contract = recipe.contract
        count = len(others) + (contract.base == INPUT and has_base)
        kind = "models" if contract.base == INPUT else "models beside the base"
        if part.inputs and (count < contract.low or (contract.high is not None and count > contract.high)):
            bound = f"{contract.low}" if contract.low == contract.high else f"at least {contract.low}"
            if contract.high is not None and contract.low != contract.high:
                bound = f"{contract.low} to {contract.high}"
            self.source.faults.append(Fault(part.where, f"{recipe.method} of {count} {kind}", bound))
        if part.inputs and not others and has_base and contract.base != INPUT:
            self.source.notes.append(f"{part.where}: no model beside the base, which is the result")
        for each in part.inputs:
            if each not in others and each.parameters and contract.base != INPUT:
                what = f"parameters of the base model have no effect in {recipe.method}"
                self.source.notes.append(f"{each.where}: {what}")
            unused = [name for name in each.parameters if name in contract.unused]
            if unused:
                self.source.notes.append(f"{each.where}: {listed(unused)} has no effect in {recipe.method}")
