"""Planning of scoring work: sequences that share a prefix share its computation.

Sequences are sorted, so that those with a common prefix are neighbours. A pack is a set of them that one forward pass
computes as trees: every distinct prefix is one token of the pass, and trees that share next to nothing are rows of a
batch, so that none attends over another. A prefix that several packs share is computed once and kept as keys and
values (a `Branch`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from fusion_eval.harness.engine.protocol import Pair

Array = np.ndarray[Any, Any]
_LEAST_PREFIX = 32
_LEAST_SHARED = 8
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Item:
    """A sequence whose last positions predict its targets.

    Args:
        position: of the pair in the caller's list.
        tokens: model input.
        targets: what the last `len(targets)` positions should predict.
    """

    position: int
    tokens: Array
    targets: tuple[int, ...]

    @property
    def start(self) -> int:
        """The first position whose output counts."""
        return len(self.tokens) - len(self.targets)


@dataclass(slots=True)
class Branch:
    """A prefix kept as keys and values, and what continues it.

    Args:
        extend: tokens added to the parent's prefix.
        depth: length of the whole prefix.
        packs: item lists, one forward pass each.
        branches: longer prefixes below.
    """

    extend: Array
    depth: int
    packs: list[list[Item]] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def items(self) -> list[Item]:
        """All items below, in order."""
        own = [item for pack in self.packs for item in pack]
        return own + [item for branch in self.branches for item in branch.items()]


def without(branch: Branch, known: Container[int]) -> Branch:
    """A branch without the packs whose items are all known by their positions."""
    packs = [pack for pack in branch.packs if any(item.position not in known for item in pack)]
    below = [without(part, known) for part in branch.branches]
    return Branch(branch.extend, branch.depth, packs, [part for part in below if part.packs or part.branches])


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one forward pass: tokens, and positions whose logits are computed."""

    tokens: int
    rows: int


def items_of(pairs: Sequence[Pair], max_length: int) -> list[Item]:
    """Model inputs of the pairs, the context cut on the left to what fits."""
    items = []
    for position, pair in enumerate(pairs):
        whole = np.array((*pair.context, *pair.continuation), dtype=np.int64)[-(max_length + 1) :]
        targets = tuple(int(t) for t in pair.continuation)[-(len(whole) - 1) :]
        items.append(Item(position, whole[:-1], targets))
    return items


class Planner:
    """Arranges items into branches and packs.

    Args:
        items: at least one token each.
        budget: of a forward pass.
    """

    def __init__(self, items: Sequence[Item], budget: Budget) -> None:
        self.items = sorted(items, key=lambda item: (item.tokens.astype(">u4").tobytes(), item.start))
        self.budget = budget
        self.lengths = np.array([len(item.tokens) for item in self.items])
        self.starts = np.array([item.start for item in self.items])
        self.rows = np.array([len(item.targets) for item in self.items])
        shared = [common_length(a.tokens, b.tokens) for a, b in pairwise(self.items)]
        self.shared = np.array([0, *shared])

    def plan(self) -> Branch:
        """The root: an empty prefix with everything below."""
        root = Branch(np.zeros(0, dtype=np.int64), 0)
        cuts = [0, *(1 + np.flatnonzero(self.shared[1:] < _LEAST_SHARED)).tolist(), len(self.items)]
        trees = list(pairwise(cuts)) if self.items else []
        for low, high in trees:
            if not self._fits(low, high, 0):
                self._descend(root, low, high, 0)
        root.packs += self._batches([(low, high) for low, high in trees if self._fits(low, high, 0)])
        return root

    def _batches(self, trees: list[tuple[int, int]]) -> list[list[Item]]:
        """Packs of whole trees of similar size."""
        packs: list[list[Item]] = []
        count = width = rows = 0
        for size, low, high in sorted(((self._size(*tree, 0), *tree) for tree in trees), key=lambda t: (-t[0], t[1])):
            more = int(self.rows[low:high].sum())
            if not packs or (count + 1) * width > self.budget.tokens or rows + more > self.budget.rows:
                packs.append([])
                count, width, rows = 0, size, 0
            packs[-1] += self.items[low:high]
            count, rows = count + 1, rows + more
        return packs

    def _size(self, low: int, high: int, base: int) -> int:
        """Distinct tokens of items low..high-1 after `base`."""
        return int(self.lengths[low:high].sum() - self.shared[low + 1 : high].sum() - base)

    def _fits(self, low: int, high: int, base: int) -> bool:
        return self._size(low, high, base) <= self.budget.tokens and self.rows[low:high].sum() <= self.budget.rows

    def _fill(self, branch: Branch, low: int, high: int, level: int) -> None:
        """Put items low..high-1, which all begin with the branch's prefix, below the branch."""
        open_from = low
        for start, end in self._children(low, high):
            if self._fits(start, end, branch.depth):
                if start > open_from and not self._fits(open_from, end, branch.depth):
                    branch.packs.append(self.items[open_from:start])
                    open_from = start
                continue
            if start > open_from:
                branch.packs.append(self.items[open_from:start])
            self._descend(branch, start, end, level)
            open_from = end
        if open_from < high:
            branch.packs.append(self.items[open_from:high])

    def _children(self, low: int, high: int) -> list[tuple[int, int]]:
        """Ranges of neighbours that share more than the whole range does."""
        if high - low == 1:
            return [(low, high)]
        least = int(self.shared[low + 1 : high].min())
        cuts = [low, *(low + 1 + np.flatnonzero(self.shared[low + 1 : high] == least)).tolist(), high]
        return list(pairwise(cuts))

    def _descend(self, branch: Branch, low: int, high: int, level: int) -> None:
        """A range too large for one pass: keep its prefix and split, or split it where it is."""
        common = self.lengths[low] if high - low == 1 else self.shared[low + 1 : high].min()
        depth = int(min(common, self.starts[low:high].min()))
        if high - low == 1 or level >= _DEEPEST:
            branch.packs += self._cut(low, high, branch.depth)
        elif depth - branch.depth >= _LEAST_PREFIX:
            below = Branch(self.items[low].tokens[branch.depth : depth], depth)
            self._fill(below, low, high, level + 1)
            branch.branches.append(below)
        else:
            self._fill(branch, low, high, level + 1)

    def _cut(self, low: int, high: int, base: int) -> list[list[Item]]:
        """Packs by order alone."""
        packs, start = [], low
        for end in range(low + 1, high + 1):
            if end == high or not self._fits(start, end + 1, base):
                packs.append(self.items[start:end])
                start = end
        return packs


def trees_of(items: Sequence[Item]) -> list[list[Item]]:
    """The trees of a pack: runs of neighbours that share more than a few tokens."""
    trees = [[items[0]]]
    for before, item in pairwise(items):
        if common_length(before.tokens, item.tokens) < _LEAST_SHARED:
            trees.append([])
        trees[-1].append(item)
    return trees


def common_length(one: Array, other: Array) -> int:
    """Length of the common prefix of two arrays."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def units_of(root: Branch, most_packs: int = 16) -> list[Branch]:
    """Independent units of work: single packs of the root, and branches in parts of at most `most_packs` packs."""
    units = [Branch(root.extend, root.depth, [pack]) for pack in root.packs]
    for branch in root.branches:
        units += _parts(branch, most_packs)
    return units


def _parts(branch: Branch, most: int) -> list[Branch]:
    count = _count(branch)
    if count <= most:
        return [branch]
    parts = [Branch(branch.extend, branch.depth, branch.packs[i : i + most]) for i in range(0, len(branch.packs), most)]
    light: list[Branch] = []
    for below in branch.branches:
        if _count(below) > most:
            parts += [Branch(branch.extend, branch.depth, [], [part]) for part in _parts(below, most)]
            continue
        if light and sum(map(_count, light)) + _count(below) > most:
            parts.append(Branch(branch.extend, branch.depth, [], light))
            light = []
        light.append(below)
    return [*parts, Branch(branch.extend, branch.depth, [], light)] if light else parts


def _count(branch: Branch) -> int:
    return len(branch.packs) + sum(map(_count, branch.branches))


@dataclass(frozen=True, slots=True)
class Pack:
    """A tree of tokens for one forward pass.

    Args:
        tokens: ids [n].
        positions: depth of each token in its sequence [n].
        sees: whether token i may look at token j of the pack [n, n].
        routes: for each item, the indices of all its tokens after the prefix.
        paths: for each item, the indices of its scored tokens.
    """

    tokens: Array
    positions: Array
    sees: Array
    routes: list[Array]
    paths: list[Array]

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return bool((np.diff(self.positions) == 1).all())


def build_pack(items: Sequence[Item], base: int) -> Pack:
    """The tree of sorted items; the first `base` tokens of each are already computed."""
    shared = [0, *(common_length(a.tokens, b.tokens) for a, b in pairwise(items))]
    total = sum(len(item.tokens) - max(s, base) for item, s in zip(items, shared, strict=True))
    tokens, positions = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    sees = np.zeros((total, total), dtype=bool)
    path = np.zeros(0, dtype=np.int64)
    routes, paths, used = [], [], 0
    for item, common in zip(items, shared, strict=True):
        kept = max(common, base) - base
        fresh = len(item.tokens) - base - kept
        path = np.concatenate([path[:kept], np.arange(used, used + fresh)])
        span = slice(used, used + fresh)
        tokens[span] = item.tokens[base + kept :]
        positions[span] = np.arange(base + kept, len(item.tokens))
        sees[span, path[:kept]] = True
        sees[span, span] = np.tri(fresh, dtype=bool)
        routes.append(path)
        paths.append(path[item.start - base :])
        used += fresh
    return Pack(tokens, positions, sees, routes, paths)
