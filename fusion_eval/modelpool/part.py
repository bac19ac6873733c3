"""A smaller model as part of a whole one: a text-only fine-tune of a vision-language model's language model.

The weights that it has take their place in the whole model; all others are the whole model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import CheckpointError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.rows import RowsFrom
from fusion_eval.merge.tokenizer import Tokenizer, read_tokenizer
from fusion_eval.merge.views import Composed, Part
from fusion_eval.merge.vocabulary import MISSING
from fusion_eval.modelpool.part_match import PartMatch, match_part


@dataclass(frozen=True, slots=True)
class Host:
    """The whole model that a part goes into.

    Args:
        name: what the pool calls it.
        checkpoint: its weights, under the model's names.
        model: its architecture.
        specs: shapes and dtypes of the architecture's weights.
        folder: its files.
    """

    name: str
    checkpoint: Checkpoint
    model: nn.Module
    specs: Mapping[str, TensorSpec]
    folder: Path

    def embeddings(self) -> tuple[str | None, tuple[str, ...]]:
        """(name of the input embeddings, names of all weights with a row per token)."""
        model: Any = self.model
        modules = [get() for get in (model.get_input_embeddings, model.get_output_embeddings)]
        rows = [{id(p) for p in module.parameters()} if module is not None else set() for module in modules]
        state = model.state_dict(keep_vars=True)
        named = [[name for name in self.specs if id(state[name]) in found] for found in rows]
        return next(iter(named[0]), None), tuple(dict.fromkeys([*named[0], *named[1]]))


@dataclass(frozen=True, slots=True)
class Placed:
    """What a part brings into a whole model.

    Args:
        own: names of the weights that are the part's.
        note: what was done, for the report.
    """

    own: frozenset[str]
    note: str


def place_part(part: Checkpoint, folder: Path, host: Host, into: str | None = None) -> tuple[Checkpoint, Placed]:
    """The whole model with a smaller model's weights in their place, and what was done.

    Args:
        part: the smaller model's weights, as its files name them.
        folder: its files, for the tokenizer and the config.
        host: the whole model.
        into: the submodule, where several match.

    Raises:
        CheckpointError: the place is not clear, or vocabularies have too little in common.
    """
    first, vocabulary = host.embeddings()
    match = match_part(host.specs, part, vocabulary, into)
    stored = dict(match.stored)
    heads = [name for name in vocabulary if name not in stored]
    if heads and first in stored and _ties(folder):
        stored |= {name: stored[first] for name in heads if host.specs[name].shape[1:] == host.specs[first].shape[1:]}
    rows, told = _in_vocabulary(part, folder, host, {n: stored[n] for n in vocabulary if n in stored})
    parts = {name: Part(host.checkpoint, name) for name in host.checkpoint}
    parts |= {name: Part(rows, part.tied.get(old, old)) for name, old in stored.items()}
    source = f"{part.source} in {host.checkpoint.source}"
    note = _note(match, host, [name for name in host.checkpoint if name not in stored], told)
    return Composed(parts, source, host.checkpoint.tied), Placed(frozenset(stored), note)


def _ties(folder: Path) -> bool:
    """Whether the model's output head is its embedding."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError):
        return False
    return bool(getattr(config, "tie_word_embeddings", False))


def _in_vocabulary(part: Checkpoint, folder: Path, host: Host, stored: Mapping[str, str]) -> tuple[Checkpoint, str]:
    """The part with a row per token of the whole model, and what was done, in words."""
    if not stored:
        return part, ""
    target, old = next(iter(stored.items()))
    rows, own = host.checkpoint.spec(target).shape[0], part.spec(part.tied.get(old, old)).shape[0]
    theirs, ours = read_tokenizer(host.folder), read_tokenizer(folder)
    order = _order(rows, own, theirs, ours)
    if own == rows and torch.equal(order, torch.arange(rows)):
        return part, ""
    shared = int((order != MISSING).sum())
    if shared < rows / 2:
        what = f"only {shared} of the {rows} tokens of '{host.name}' are in its vocabulary of {own}"
        raise CheckpointError(Fault(part.source, what, "a vocabulary that shares most tokens"))
    others = {part.tied.get(o, o): Part(host.checkpoint, name) for name, o in stored.items()}
    told = f"; {shared} of {rows} rows of the vocabulary are its own ({own} rows), the others those of '{host.name}'"
    if theirs is None or ours is None:
        told += ", taking equal ids for equal tokens, since not both have a tokenizer"
    return RowsFrom(part, order, others), told


def _order(rows: int, own: int, theirs: Tokenizer | None, ours: Tokenizer | None) -> Tensor:
    """For each row of the whole model the part's row with the same token, or -1."""
    same = torch.arange(rows)
    same[own:] = MISSING
    if theirs is None or ours is None:
        return same
    order = torch.full((rows,), MISSING)
    for token, number in theirs.ids.items():
        known = ours.ids.get(token, MISSING)
        if number < rows and known < own:
            order[number] = known
    padding = torch.ones(rows, dtype=torch.bool)
    padding[[number for number in theirs.ids.values() if number < rows]] = False
    if torch.equal(order[~padding], same[~padding]):
        order[padding] = same[padding]  # the vocabularies are one: rows without a token are alike too
    return order


def _note(match: PartMatch, host: Host, rest: list[str], told: str) -> str:
    """What went where."""
    place = match.model_prefix.rstrip(".") or "the model"
    rule = f" ('{match.file_prefix}' becomes '{match.model_prefix}')" if match.file_prefix != match.model_prefix else ""
    modules = list(dict.fromkeys(".".join(name.split(".")[:2]) for name in rest))
    text = f"{len(match.stored)} tensors are those of {place}{rule}"
    text += f"; the other {len(rest)} are those of '{host.name}': {listed(modules)}" if rest else ""
    text += f"; left out: {listed(match.left_out)}" if match.left_out else ""
    return text + told
