"""Models of a recipe in one vocabulary: which rows move, and what stands for tokens that a model lacks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.merge.approximation import BY_DONOR
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.group import working
from fusion_eval.merge.layers import layer_of
from fusion_eval.merge.recipe import ModelReference, Recipe, TokenizerChoice, TokenSource
from fusion_eval.merge.recipe_material import Material
from fusion_eval.merge.stack import INPUT_SIDE
from fusion_eval.merge.tokenizer import Tokenizer, union, with_tokens
from fusion_eval.merge.transplant import Splitter, combinations, drawn, pieced
from fusion_eval.merge.views import Composed, Part
from fusion_eval.merge.vocabulary import MISSING, Permuted

_POSITIONS: Final = re.compile(r"(?i)position|(^|\.)(wpe|pos_embed)")


@dataclass(frozen=True, slots=True)
class Row:
    """The embedding of a token that a model lacks: the mean of rows of models, zero where there are none."""

    rows: tuple[tuple[ModelReference, int], ...] = ()


def with_tied_heads(models: Mapping[ModelReference, Material]) -> dict[ModelReference, Checkpoint]:
    """The weights, where a model that ties its head to its embedding meets one that does not, with the head as well."""
    names = dict.fromkeys(name for each in models.values() for name in each.checkpoint if layer_of(name) is None)
    return {ref: _with_head(each, names) for ref, each in models.items()}


def _with_head(material: Material, names: Mapping[str, None]) -> Checkpoint:
    checkpoint = material.checkpoint
    tables = [n for n in _outside(checkpoint, 2) if re.search(INPUT_SIDE, n) and not _POSITIONS.search(n)]
    absent = [
        name
        for name in names
        if name not in checkpoint and name not in checkpoint.tied and not re.search(INPUT_SIDE, name)
    ]
    heads = [name for name in absent if re.search(r"head\.weight$|embed_out\.weight$|output\.weight$", name)]
    if len(tables) != 1 or len(heads) != 1 or not material.config.get("tie_word_embeddings", True):
        return checkpoint
    parts = {name: Part(checkpoint, name) for name in checkpoint} | {heads[0]: Part(checkpoint, tables[0])}
    return Composed(parts, checkpoint.source, checkpoint.tied)


def _outside(checkpoint: Checkpoint, dims: int) -> list[str]:
    """Tensors of some number of dimensions that lie in no layer."""
    return [name for name in checkpoint if layer_of(name) is None and len(checkpoint.spec(name).shape) == dims]


def in_one_vocabulary(
    recipe: Recipe, models: Mapping[ModelReference, Material], checkpoints: Mapping[ModelReference, Checkpoint]
) -> tuple[dict[ModelReference, Checkpoint], Tokenizer | None]:
    """The weights in the vocabulary of the recipe's tokenizer, and that tokenizer; None where it says nothing of one.

    Models whose vocabularies are the same are left as they are, padding rows included.

    Raises:
        ConfigError: a model has no tokenizer, or no embeddings; a token's source has no such token.
    """
    choice = recipe.tokenizer
    if choice is None:
        return dict(checkpoints), None
    _require_tokenizers(choice, models)
    target = _target(choice, recipe, models)
    aligner = _Aligner(recipe, choice, models, checkpoints, target)
    if aligner.nothing_to_do():
        return dict(checkpoints), target
    return {ref: aligner.view(ref) for ref in recipe.models}, target


def require_one_vocabulary(
    recipe: Recipe,
    models: Mapping[ModelReference, Material],
    checkpoints: Mapping[ModelReference, Checkpoint],
    result: Checkpoint,
) -> None:
    """Refuse slices of which the first has another vocabulary than the last: no config fits their merge.

    Raises:
        ConfigError: the embedding and the head have different numbers of entries.
    """
    sizes: dict[str, int] = {}
    for ref in recipe.models if any(len(module.slices) > 1 for module in recipe.modules) else ():
        axes = vocabulary_axes(checkpoints[ref], models[ref].config)
        sizes |= {name: result.spec(name).shape[axis] for name, axis in axes.items() if name in result}
    if len(set(sizes.values())) > 1:
        found = listed([f"'{name}' of {size}" for name, size in sizes.items()])
        do = "Set tokenizer: {source: union}."
        raise ConfigError(
            Fault(recipe.where, f"slices of different vocabularies: {found} tokens", "one vocabulary", do)
        )


def _require_tokenizers(choice: TokenizerChoice, models: Mapping[ModelReference, Material]) -> None:
    bare = [str(ref) for ref, each in models.items() if each.tokenizer is None]
    if bare:
        raise ConfigError(
            Fault(choice.where, f"models without a tokenizer: {listed(bare)}", "tokenizer files beside them")
        )


def _target(choice: TokenizerChoice, recipe: Recipe, models: Mapping[ModelReference, Material]) -> Tokenizer:
    """The tokenizer of the result; without a base model, the first one listed stands for it."""
    order = [_tokenizer(models[ref]) for ref in recipe.models]
    if choice.source.path == "union":
        chosen = union(order[0], order[1:])
    elif choice.source.path == "base":
        chosen = order[0]
    else:
        chosen = _tokenizer(models[choice.source])
    return with_tokens(chosen, choice.tokens)


def _tokenizer(material: Material) -> Tokenizer:
    assert material.tokenizer is not None, "checked before"
    return material.tokenizer


def vocabulary_axes(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, int]:
    """{tensor: axis} of tensors with an entry per token: outside the layers, as long as the config's vocabulary."""
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    tables = [n for n in _outside(checkpoint, 2) if re.search(INPUT_SIDE, n) and not _POSITIONS.search(n)]
    if size is None and tables:
        size = max(checkpoint.spec(name).shape[0] for name in tables)
    axes = {}
    for name in (*_outside(checkpoint, 2), *(n for n in _outside(checkpoint, 1) if n.endswith("bias"))):
        shape = checkpoint.spec(name).shape
        if size in shape and not _POSITIONS.search(name):
            axes[name] = shape.index(size)
    return axes


class _Aligner:
    """Moves rows of each model to the target's ids."""

    def __init__(
        self,
        recipe: Recipe,
        choice: TokenizerChoice,
        models: Mapping[ModelReference, Material],
        checkpoints: Mapping[ModelReference, Checkpoint],
        target: Tokenizer,
    ) -> None:
        self.recipe, self.choice, self.models, self.target = recipe, choice, models, target
        self.checkpoints = {ref: checkpoints[ref] for ref in models}
        self.axes = {ref: vocabulary_axes(c, models[ref].config) for ref, c in self.checkpoints.items()}
        self.rows = {ref: self._rows(ref) for ref in models}
        bare = [str(ref) for ref in recipe.models if not self.axes[ref]]
        if bare:
            raise ConfigError(Fault(choice.where, f"no embeddings found in {listed(bare)}", "a tensor row per token"))
        multiple = choice.multiple or 1
        self.size = target.size
        self.total = -(-self.size // multiple) * multiple
        self.forced = {token for token, source in choice.tokens.items() if source.force}
        self.fills = self._fills()

    def _rows(self, ref: ModelReference) -> int:
        axes, checkpoint = self.axes[ref], self.checkpoints[ref]
        return min((checkpoint.spec(name).shape[axis] for name, axis in axes.items()), default=0)

    def nothing_to_do(self) -> bool:
        """Whether all models have the target's ids already, and as many rows as one another."""
        same = all(dict(_tokenizer(self.models[ref]).ids) == dict(self.target.ids) for ref in self.recipe.models)
        rows = {self.rows[ref] for ref in self.recipe.models}
        return same and len(rows) == 1 and not self.forced and self.choice.multiple is None

    def own(self, ref: ModelReference, token: str) -> int:
        """The row of a token in a model, or -1."""
        number = _tokenizer(self.models[ref]).ids.get(token, MISSING)
        return number if number < self.rows[ref] else MISSING

    def _fills(self) -> list[tuple[int, Row]]:
        """For every id of the result what stands for its token in models that lack it."""
        found, faults = [], []
        for token, number in self.target.ids.items():
            source = self.choice.tokens.get(token)
            if source is not None and source.kind:
                row, fault = self._said(token, source)
                faults += [] if fault is None else [fault]
            else:
                row = self._usual(token)
            found.append((number, row))
        if faults:
            raise ConfigError(*faults)
        return found

    def _said(self, token: str, source: TokenSource) -> tuple[Row, Fault | None]:
        if source.kind == "zero":
            return Row(), None
        ref = source.model
        assert ref is not None, "a fault of the reader"
        number = source.token_id
        wanted = token if source.token is None else source.token
        if number is None:
            number = self.own(ref, wanted)
        if 0 <= number < self.rows[ref]:
            return Row(((ref, number),)), None
        what = f"token '{wanted}'" if source.token_id is None else f"token id {number}"
        hint = did_you_mean(wanted, _tokenizer(self.models[ref]).ids)
        return Row(), Fault(source.where, f"'{ref}' has no {what}", "one of its tokens", hint)

    def _usual(self, token: str) -> Row:
        """The base's row, else the mean of the owners', else zero."""
        owners = [(ref, self.own(ref, token)) for ref in self.recipe.models if self.own(ref, token) != MISSING]
        if self.recipe.base is not None:
            owners = [pair for pair in owners if pair[0] == self.recipe.base] or owners
        return Row(tuple(owners))

    def view(self, ref: ModelReference) -> Checkpoint:
        """A model in the target's vocabulary."""
        order = torch.full((self.total,), MISSING, dtype=torch.long)
        for token, number in self.target.ids.items():
            if token not in self.forced:
                order[number] = self.own(ref, token)
        absent = [number for number in range(self.total) if order[number] == MISSING]
        rows = dict(self.fills)
        wanted = [rows.get(number, Row()) for number in absent]
        padding = [index for index, number in enumerate(absent) if number >= self.size]
        present = order[order != MISSING]

        said = {token for token, source in self.choice.tokens.items() if source.kind}
        names = {number: token for token, number in self.target.ids.items() if token not in said}
        tokens = [names.get(number) for number in absent]

        def fill(name: str) -> Tensor:
            entries = self._entries(ref, name, wanted)
            if self.choice.approximate is not None:
                self._approximate(ref, name, tokens, entries)
            if padding:
                axis = self.axes[ref][name]
                own = working(self.checkpoints[ref].read(name)).movedim(axis, 0).index_select(0, present)
                known = [index for index in range(len(absent)) if index not in set(padding)]
                entries[padding] = torch.cat([own, entries[known]]).mean(0)
            return entries.movedim(0, self.axes[ref][name])

        return Permuted(self.checkpoints[ref], order, self.axes[ref], fill, self._fill_key(wanted, padding))

    def _fill_key(self, wanted: Sequence[Row], padding: Sequence[int]) -> str | None:
        """The models that rows come from and which rows, or None where a model has no key."""
        keys = {str(ref): checkpoint.key() for ref, checkpoint in self.checkpoints.items()}
        if None in keys.values():
            return None
        rows = [[(str(ref), number) for ref, number in row.rows] for row in wanted]
        axes = {str(ref): found for ref, found in self.axes.items()}
        parts = (keys, axes, rows, list(padding), self.choice.approximate)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _table(self, ref: ModelReference, name: str) -> Tensor:
        """A tensor of a model with the vocabulary first."""
        return working(self.checkpoints[ref].read(name)).movedim(self.axes[ref][name], 0)

    def _approximate(self, ref: ModelReference, name: str, tokens: Sequence[str | None], entries: Tensor) -> None:
        """Make the entries of tokens of the model's own rows."""
        how = self.choice.approximate
        assert how is not None
        if how.method not in BY_DONOR:
            places = [index for index, token in enumerate(tokens) if token is not None]
            entries[places] = self._alone(ref, name, [str(tokens[i]) for i in places], entries[places])
            return
        for donor in self.models:
            places = [i for i, token in enumerate(tokens) if token is not None and self.own(donor, token) != MISSING]
            if donor == ref or not places or not self.axes[donor]:
                continue
            theirs = self._table(donor, name if name in self.axes[donor] else next(iter(self.axes[donor])))
            shared = [t for t in self.target.ids if MISSING not in (self.own(ref, t), self.own(donor, t))]
            atoms, mine = ([self.own(each, token) for token in shared] for each in (donor, ref))
            targets = [self.own(donor, str(tokens[i])) for i in places]
            flat = theirs.reshape(len(theirs), -1)
            chosen, numbers = combinations(flat[atoms], flat[targets], how)
            rows = self._table(ref, name)[mine]
            found = torch.einsum("tk,tk...->t...", numbers, rows[chosen].double())
            entries[places] = found.to(entries.dtype)
            tokens = [None if i in set(places) else token for i, token in enumerate(tokens)]

    def _alone(self, ref: ModelReference, name: str, tokens: Sequence[str], usual: Tensor) -> Tensor:
        """Entries of tokens without a look at other models; a token without pieces of its own keeps the usual one."""
        how, table = self.choice.approximate, self._table(ref, name)
        assert how is not None
        if how.method != "subword":
            rows = drawn(table.reshape(len(table), -1), len(tokens), how.method, f"{ref}/{name}")
            return rows.to(usual.dtype).reshape(usual.shape)
        splitter, head = Splitter(self.target, _tokenizer(self.models[ref])), re.search(INPUT_SIDE, name) is None
        found = usual.clone()
        for index, token in enumerate(tokens):
            pieces = [number for number in splitter.pieces(self.target.ids[token]) if number < self.rows[ref]]
            if pieces:
                found[index] = pieced(table, pieces, how.pieces, head).to(usual.dtype)
        return found

    def _entries(self, ref: ModelReference, name: str, wanted: Sequence[Row]) -> Tensor:
        """Float32 entries for tokens, along the first axis; a model without this tensor does not count."""
        example = self._table(ref, name)
        tensors = {
            each: self._table(each, name)
            for each, checkpoint in self.checkpoints.items()
            if name in self.axes[each] and name in checkpoint
        }
        tensors = {each: table for each, table in tensors.items() if table.shape[1:] == example.shape[1:]}
        entries = torch.zeros((len(wanted), *example.shape[1:]), dtype=example.dtype)
        for index, row in enumerate(wanted):
            found = [tensors[ref][number] for ref, number in row.rows if ref in tensors]
            if found:
                entries[index] = sum(found[1:], found[0]) / len(found)
        return entries
