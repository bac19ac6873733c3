"""Stored tensors under the names that a model gives its weights, whatever version or parent model wrote the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.views import Composed, Part

Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class NameMatch:
    """How a file's names and a model's names correspond.

    Args:
        stored: {name in the model: name in the file}, in the file's order.
        left_out: tensors of the file that the model has no place for.
    """

    stored: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    left_out: tuple[str, ...] = ()


def match_names(wanted: Mapping[str, TensorSpec], checkpoint: Checkpoint, rename: Rename | None = None) -> NameMatch:
    """The file's names of the model's weights.

    A name is looked for as it is, as `rename` turns the file's names, and with the one prefix taken off or put on that
    makes most names and shapes agree: so a vision tower is found inside a whole CLIP, and an encoder inside a
    classifier.

    Args:
        wanted: the model's weights.
        checkpoint: the file.
        rename: a library's own rule from old names to new ones.
    """
    names = [*checkpoint, *checkpoint.tied]
    direct = {name: name for name in names if name in wanted}
    if rename is not None and len(direct) < len(names):
        for name in names:
            new = rename(name)
            if new in wanted and new not in direct:
                direct[new] = name
    strip, add = _best_prefixes(set(wanted) - set(direct), wanted, checkpoint)
    for name in wanted:
        for candidate in (strip + name, name.removeprefix(add) if add else ""):
            if name not in direct and candidate in checkpoint and candidate not in direct.values():
                direct[name] = candidate
    used = set(direct.values()) | {checkpoint.tied.get(name, name) for name in direct.values()}
    order = {name: index for index, name in enumerate(names)}
    stored = dict(sorted(direct.items(), key=lambda pair: order[pair[1]]))
    return NameMatch(MappingProxyType(stored), tuple(name for name in checkpoint if name not in used))


def under_model_names(checkpoint: Checkpoint, match: NameMatch, *, keep_rest: bool = False) -> Checkpoint:
    """The checkpoint with the model's names; what the model has no place for is left out, or kept as it is called."""
    if not match.left_out and all(new == old for new, old in match.stored.items()):
        return checkpoint
    parts: dict[str, Part] = {}
    tied: dict[str, str] = {}
    owner: dict[str, str] = {}
    rest = {name: name for name in match.left_out} if keep_rest else {}
    for new, old in {**match.stored, **rest}.items():
        kept = checkpoint.tied.get(old, old)
        if kept in owner:
            tied[new] = owner[kept]
        else:
            owner[kept] = new
            parts[new] = Part(checkpoint, kept)
    return Composed(parts, checkpoint.source, tied)


def under_file_names(checkpoint: Checkpoint, match: NameMatch) -> Checkpoint:
    """The inverse of `under_model_names`, for saving what loads wherever the original did."""
    if all(new == old for new, old in match.stored.items()):
        return checkpoint
    parts = {match.stored.get(name, name): Part(checkpoint, name) for name in checkpoint}
    tied = {match.stored.get(name, name): match.stored.get(kept, kept) for name, kept in checkpoint.tied.items()}
    return Composed(parts, checkpoint.source, tied)


def transformers_renaming(model: nn.Module) -> Rename | None:
    """The installed transformers' own rule from a file's names to the model's, or None where it has none.

    Only renaming is taken over: a model whose weights are also fused or split at loading keeps its file's names.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, rename_source_key
    except ImportError:  # transformers 4 has names that need no rule
        return None
    rules: list[Any] = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    if not renamings:
        return None
    meta = model.state_dict()
    prefix = getattr(model, "base_model_prefix", "") or None
    return lambda name: str(rename_source_key(name, renamings, [], prefix, meta)[0])


def _best_prefixes(
    missing: Collection[str], wanted: Mapping[str, TensorSpec], checkpoint: Checkpoint
) -> tuple[str, str]:
    """(prefix that the file has before the model's names, prefix that the model has before the file's)."""
    before_file: Counter[str] = Counter()
    before_model: Counter[str] = Counter()
    by_tail: dict[str, list[str]] = {}
    for name in checkpoint:
        for tail in _tails(name):
            by_tail.setdefault(tail, []).append(name)
    for name in missing:
        for stored in by_tail.get(name, ()):
            if stored != name and checkpoint.spec(stored).shape == wanted[name].shape:
                before_file[stored.removesuffix(name)] += 1
        for tail in _tails(name):
            if tail != name and tail in checkpoint and checkpoint.spec(tail).shape == wanted[name].shape:
                before_model[name.removesuffix(tail)] += 1
    strip, add = _most(before_file), _most(before_model)
    return (strip, "") if before_file[strip] >= before_model[add] else ("", add)


def _tails(name: str) -> Iterator[str]:
    """`a.b.c`, `b.c`, `c`."""
    while name:
        yield name
        name = name.partition(".")[2]


def _most(counts: Counter[str]) -> str:
    return max(counts, key=lambda prefix: (counts[prefix], -len(prefix)), default="")
