"""Which weights of a model a smaller model's file holds: a language model inside a vision-language model.

The correspondence is found from names and shapes alone. One prefix of the file stands for one prefix of the model,
such as `model.` for `model.language_model.`; what is outside it, such as an output head, is found by its own name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fusion_eval.errors import CheckpointError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.layers import layer_of

ENOUGH: Final = 0.9
"""The share of a file's elements that must have a place in the model."""
_TRIED: Final = 16  # pairs of prefixes that are compared in full


@dataclass(frozen=True, slots=True)
class PartMatch:
    """How a file's names correspond to a part of a model.

    Args:
        stored: {name in the model: name in the file}.
        file_prefix: what stands before the file's names in place of `model_prefix`.
        model_prefix: the part of the model.
        left_out: floating tensors of the file that the model has no place for.
    """

    stored: Mapping[str, str]
    file_prefix: str
    model_prefix: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Search:
    """The two sides of a correspondence; `vocabulary` names weights that may have more or fewer rows."""

    wanted: Mapping[str, TensorSpec]
    checkpoint: Checkpoint
    vocabulary: Collection[str]
    into: str | None
    names: tuple[str, ...]

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a tensor of the file, tied or not."""
        return self.checkpoint.spec(self.checkpoint.tied.get(name, name))

    def fits(self, name: str, target: str) -> bool:
        """Whether the file's tensor has the shape of the weight, but for rows of the vocabulary."""
        own, other = self.spec(name).shape, self.wanted[target].shape
        return own == other or (target in self.vocabulary and own[1:] == other[1:])

    def inside(self, target: str) -> bool:
        """Whether the weight is in the submodule that was asked for."""
        return self.into is None or f".{target}".find(f".{self.into}.") >= 0

    def under(self, rule: tuple[str, str], *, shapes: bool = True) -> dict[str, str]:
        """{name in the model: name in the file} by replacing one prefix."""
        old, new = rule
        pairs = {new + name.removeprefix(old): name for name in self.names if name.startswith(old)}
        return {t: n for t, n in pairs.items() if t in self.wanted and (not shapes or self.fits(n, t))}


def match_part(
    wanted: Mapping[str, TensorSpec], checkpoint: Checkpoint, vocabulary: Collection[str] = (), into: str | None = None
) -> PartMatch:
    """The weights of a model that a file holds, all of them in one part of the model.

    Args:
        wanted: the model's weights.
        checkpoint: the file.
        vocabulary: weights with a row per token, whose number of rows may differ.
        into: the submodule to look in, such as `language_model`.

    Raises:
        CheckpointError: nothing or too little matches, two parts match equally well, or a part is matched with gaps.
    """
    kept = [*((name, name) for name in checkpoint), *checkpoint.tied.items()]
    names = tuple(name for name, stored in kept if checkpoint.spec(stored).dtype.is_floating_point)
    search = _Search(wanted, checkpoint, vocabulary, into, names)
    rule = _best(search)
    stored = search.under(rule)
    placed = set(stored.values())
    for name in search.names:
        own = _by_own_name(search, name, stored) if name not in placed else None
        if own is not None:
            stored[own] = name
    used = {checkpoint.tied.get(name, name) for name in stored.values()}
    left_out = tuple(name for name in search.names if name in checkpoint and name not in used)
    faults = [*_gaps(search, rule, stored), *_leftovers(search, rule, stored, left_out)]
    if faults:
        raise CheckpointError(*faults)
    return PartMatch(MappingProxyType(stored), *rule, left_out)


def _best(search: _Search) -> tuple[str, str]:
    """The one pair of prefixes that gives most tensors of the file a place."""
    ranked = _ranked(search)
    if not ranked:
        raise CheckpointError(_nothing(search))
    rule, found = ranked[0]
    for other, also in ranked[1:]:
        if len(also) == len(found) and also.keys() != found.keys():
            parts = sorted({_part(rule[1]), _part(other[1])})
            what = f"its {len(found)} tensors match {' and '.join(parts)} equally well"
            raise CheckpointError(Fault(search.checkpoint.source, what, "one part", f"Say which: into: {parts[0]}."))
    return rule


def _ranked(search: _Search, *, shapes: bool = True) -> list[tuple[tuple[str, str], dict[str, str]]]:
    """Pairs of prefixes with what they match, the one that matches most first."""
    targets: dict[str, list[str]] = defaultdict(list)
    for target in search.wanted:
        if search.inside(target):
            for tail in _tails(target):
                targets[tail].append(target)
    votes: Counter[tuple[str, str]] = Counter()
    for name in search.names:
        longest = next((tail for tail in _tails(name) if tail in targets), "")
        for target in targets.get(longest, ()):
            if not shapes or search.fits(name, target):
                votes[name.removesuffix(longest), target.removesuffix(longest)] += 1
    matched = [(rule, search.under(rule, shapes=shapes)) for rule, _ in votes.most_common(_TRIED)]
    return sorted(matched, key=lambda pair: (-len(pair[1]), len(pair[0][1]), pair[0]))


def _by_own_name(search: _Search, name: str, stored: Mapping[str, str]) -> str | None:
    """The one weight that has the file's name, perhaps inside another module, and is not taken."""
    ends = [t for t in search.wanted if t not in stored and (t == name or t.endswith(f".{name}"))]
    fitting = [target for target in ends if search.fits(name, target)]
    return fitting[0] if len(fitting) == 1 else None


def _gaps(search: _Search, rule: tuple[str, str], stored: Mapping[str, str]) -> Iterator[Fault]:
    """Weights beside matched ones that the file lacks, or has in another shape."""
    named = search.under(rule, shapes=False)
    unequal = [
        f"{name} is {search.spec(name).shape} and {target} of the model {search.wanted[target].shape}"
        for target, name in named.items()
        if target not in stored
    ]
    if unequal:
        what = f"{len(unequal)} of {len(named)} tensors have other shapes: {listed(unequal)}"
        yield Fault(search.checkpoint.source, what, do="Merge only language models of one architecture.")
    beside = _neighbourhood(rule[1], named)
    lost = [t for t in search.wanted if t.startswith(beside) and t not in named and t not in search.vocabulary]
    if lost:
        what = f"lacks {len(lost)} tensors of {_part(rule[1])}: {listed(lost)}"
        yield Fault(search.checkpoint.source, what, do="Merge only language models of one architecture.")


def _neighbourhood(prefix: str, matched: Collection[str]) -> tuple[str, ...]:
    """Beginnings of names that the file must hold all of; the modules that it has, where there is no prefix."""
    return (prefix,) if prefix else tuple({".".join(name.split(".")[:2]) + "." for name in matched})


def _leftovers(
    search: _Search, rule: tuple[str, str], stored: Mapping[str, str], left_out: Sequence[str]
) -> Iterator[Fault]:
    """Layers that the model has no place for, and files of which too little has one."""
    source = search.checkpoint.source
    heads = {search.spec(name).shape for target, name in stored.items() if target in search.vocabulary}
    body = [name for name in search.checkpoint if search.spec(name).shape not in heads]  # a head may be tied to them
    every, lost = (sum(search.spec(n).numel for n in body if n in names) for names in (set(body), set(left_out)))
    layers = {found for name in stored.values() if (found := layer_of(name)) is not None}
    stacks = {stack for stack, _ in layers}
    deeper = {
        (s, n) for name in left_out for s, n in [layer_of(name) or ("", -1)] if s in stacks and (s, n) not in layers
    }
    if deeper:
        yield Fault(source, f"has {len(deeper)} layers more than {_part(rule[1])}", "the same number of layers")
    elif lost > (1 - ENOUGH) * every:
        what = (
            f"only {100 * (1 - lost / every):.0f} % of its elements have a place in the model; not: {listed(left_out)}"
        )
        yield Fault(source, what, f"at least {100 * ENOUGH:.0f} %", "Is it the language model of this model?")


def _nothing(search: _Search) -> Fault:
    """Why no tensor of the file fits the model."""
    source, count = search.checkpoint.source, len(search.names)
    if search.into is not None and not any(search.inside(target) for target in search.wanted):
        parts = sorted({target.rpartition(".")[0].split(".layers.")[0] for target in search.wanted})
        return Fault(source, f"the model has no submodule '{search.into}'", f"one like {listed(parts)}")
    by_name = _ranked(search, shapes=False)
    if not by_name:
        what = f"none of its {count} tensors is a weight of the pool's models: {listed(search.names)}"
        return Fault(source, what, do="Choose the auto_class that the weights were made for.")
    target, name = next(iter(by_name[0][1].items()))
    what = f"its tensors have other shapes: {name} is {search.spec(name).shape}, {target} {search.wanted[target].shape}"
    return Fault(source, what, do="Merge only language models of one architecture.")


def _tails(name: str) -> Iterator[str]:
    """The name and its ends of at least two parts, the longest first."""
    while "." in name:
        yield name
        name = name.partition(".")[2]


def _part(prefix: str) -> str:
    return prefix.rstrip(".") or "the model itself"
