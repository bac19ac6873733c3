"""Ranks with intervals and tie groups from pairwise verdicts.

A method's rank lies between one plus the number of methods shown better and the number of methods less those shown
worse (Mogstad, Romano, Shaikh and Wilhelm 2024): the intervals hold together when the verdicts are corrected for their
family.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fusion_eval.stats.arrays import Floats


def ranks_of(values: Floats, *, higher_is_better: bool = True) -> Floats:
    """Ranks along the last axis, 1 for the best, equal values sharing their mean rank."""
    return np.asarray(rankdata(-values if higher_is_better else values, axis=-1))


def rank_intervals(beats: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The lowest and highest possible rank of every method; beats[i, j] says that i was shown better than j."""
    count = len(beats)
    return [(1 + int(beats[:, i].sum()), count - int(beats[i].sum())) for i in range(count)]


def tie_groups(order: Sequence[int], differs: NDArray[np.bool_]) -> list[list[int]]:
    """The longest runs of neighbouring methods, best first, in which no two were shown to differ."""
    groups: list[list[int]] = []
    for start in range(len(order)):
        stop = start + 1
        while stop < len(order) and not differs[order[stop], list(order[start:stop])].any():
            stop += 1
        if not groups or stop > order.index(groups[-1][-1]) + 1:
            groups.append(list(order[start:stop]))
    return groups


def group_letters(count: int, groups: Sequence[Sequence[int]]) -> list[str]:
    """The letters of every method's tie groups: methods that share a letter were not shown to differ."""
    letters = ["" for _ in range(count)]
    for number, group in enumerate(groups):
        for member in group:
            letters[member] += chr(ord("a") + number % 26)
    return letters
