"""Recipes as data: what mergekit's YAML says, read strictly, with the line of everything that can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fusion_eval.merge.approximation import Approximation
from fusion_eval.merge.recipe_contract import CONTRACTS, Contract

Scalar = float | bool

DTYPES: Final = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A model as a recipe names it.

    Args:
        path: a folder, a file, a hub id, or the name of an earlier document.
        revision: commit, tag or branch of a hub repository.
        adapter: a LoRA adapter on top of it.
        adapter_revision: the adapter's commit, tag or branch.
    """

    path: str
    revision: str | None = None
    adapter: str | None = None
    adapter_revision: str | None = None

    def __str__(self) -> str:
        text = self.path + (f"@{self.revision}" if self.revision else "")
        if self.adapter is None:
            return text
        return f"{text}+{self.adapter}" + (f"@{self.adapter_revision}" if self.adapter_revision else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter's value for tensors whose name contains `filter` (all where it is None): one value or a gradient."""

    values: tuple[Scalar, ...]
    filter: str | None = None

    def fits(self, name: str) -> bool:
        """Whether it holds for a tensor; as the peer does, `layers.1` fits `layers.10` too."""
        return self.filter in (None, "*") or self.filter in name

    def at(self, position: float) -> Scalar:
        """The value at a depth from 0 to 1: linear between equally spaced numbers, one of several flags."""
        x = position * (len(self.values) - 1)
        low = min(int(x), len(self.values) - 1)
        if isinstance(self.values[0], bool) or len(self.values) == 1:
            return self.values[low]
        high = min(low + 1, len(self.values) - 1)
        return (1 - (x - low)) * self.values[low] + (x - low) * self.values[high]


@dataclass(frozen=True, slots=True)
class Setting:
    """A parameter as it stands in one place of a recipe: the first entry that fits a tensor counts."""

    entries: tuple[Entry, ...]
    where: str

    def value(self, name: str, position: float) -> Scalar | None:
        """The value for a tensor, or None where no entry fits."""
        return next((entry.at(position) for entry in self.entries if entry.fits(name)), None)


Settings = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Input:
    """A model, or some of its layers, that takes part in a merge.

    Args:
        model: the model.
        layers: the first layer and the one after the last, or None: the whole model.
        parameters: what is said of this model.
        where: the line.
    """

    model: ModelReference
    layers: tuple[int, int] | None = None
    parameters: Settings = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, slots=True)
class Slice:
    """Models, or layers of models, that are merged with each other."""

    inputs: tuple[Input, ...]
    base: ModelReference | None = None
    parameters: Settings = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A part of a model that is merged on its own; `default` is what no other module covers."""

    name: str
    slices: tuple[Slice, ...]
    parameters: Settings = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where the embedding of a token comes from.

    Args:
        kind: `model`, `zero`, or `` for nothing said.
        model: the model.
        token: its token, or None: the same token.
        token_id: its token's id.
        force: whether models that have the token get this embedding too.
        where: the line.
    """

    kind: str = ""
    model: ModelReference | None = None
    token: str | None = None
    token_id: int | None = None
    force: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class TokenizerChoice:
    """The tokenizer of the merge.

    Args:
        source: `union`, `base` or a model.
        tokens: embeddings of single tokens; unknown tokens are added to the vocabulary.
        multiple: the number of rows of embeddings is made a multiple of this.
        where: the line.
        approximate: how the row of a token that a model lacks is made of its own rows; None: it is taken from other
            models as it is.
    """

    source: ModelReference
    tokens: Mapping[str, TokenSource] = field(default_factory=dict)
    multiple: int | None = None
    where: str = ""
    approximate: Approximation | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """One document of a recipe file.

    Args:
        method: mergekit's name of the method.
        modules: at least one.
        base: the base model, or None.
        parameters: what holds for all models.
        dtype: what models are merged in, and saved in unless `out_dtype` says otherwise.
        out_dtype: what is saved.
        tokenizer: the tokenizer, or None: the base's, else the first model's, with no change to embeddings.
        chat_template: `auto`, the name of a known one, a Jinja text, or None: as in the model that gives the tokenizer.
        name: what other documents call the result.
        where: the line.
    """

    method: str
    modules: tuple[Module, ...]
    base: ModelReference | None = None
    parameters: Settings = field(default_factory=dict)
    dtype: str | None = None
    out_dtype: str | None = None
    tokenizer: TokenizerChoice | None = None
    chat_template: str | None = None
    name: str | None = None
    where: str = ""

    @property
    def contract(self) -> Contract:
        """What the method takes."""
        return CONTRACTS[self.method]

    @property
    def models(self) -> tuple[ModelReference, ...]:
        """Every model whose weights take part, the base first, each once."""
        found = [] if self.base is None else [self.base]
        for module in self.modules:
            for part in module.slices:
                found += [] if part.base is None else [part.base]
                found += [each.model for each in part.inputs]
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A file of recipes, or of one of our own.

    Args:
        text: the file's text.
        documents: mergekit's documents in an order in which each comes after those it uses; the last is the result.
        own: `method` and `modelpool` nodes of a recipe in our own spelling, else empty.
        seed: the seed that the recipe was made with, or None.
        compat: whether it was made with the peer's arithmetic, or None.
        notes: what has no effect.
    """

    text: str
    documents: tuple[Recipe, ...] = ()
    own: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    compat: bool | None = None
    notes: tuple[str, ...] = ()
