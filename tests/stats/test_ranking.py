from __future__ import annotations

import numpy as np

from fusion_eval.stats import compare_scores
from fusion_eval.stats.ranking import group_letters, rank_intervals, ranks_of, tie_groups


def test_ranks_share_ties_and_follow_the_direction():
    values = np.array([0.3, 0.9, 0.9, 0.1])
    assert ranks_of(values).tolist() == [3, 1.5, 1.5, 4]
    assert ranks_of(values, higher_is_better=False).tolist() == [2, 3.5, 3.5, 1]


def test_rank_intervals():
    beats = np.zeros((3, 3), dtype=bool)
    assert rank_intervals(beats) == [(1, 3), (1, 3), (1, 3)]
    beats[0, 2] = True
    assert rank_intervals(beats) == [(1, 2), (1, 3), (2, 3)]


def test_tie_groups_overlap():
    differs = np.zeros((4, 4), dtype=bool)
    for a, b in ((0, 2), (0, 3), (1, 3)):
        differs[a, b] = differs[b, a] = True
    groups = tie_groups([0, 1, 2, 3], differs)
    assert groups == [[0, 1], [1, 2], [2, 3]]
    assert group_letters(4, groups) == ["a", "ab", "bc", "c"]


def test_separate_methods_stand_alone():
    differs = ~np.eye(3, dtype=bool)
    assert tie_groups([2, 0, 1], differs) == [[2], [0], [1]]


def test_summaries_carry_them():
    rng = np.random.default_rng(0)
    scores = {"low": rng.random(500) < 0.5, "high": rng.random(500) < 0.8, "twin": rng.random(500) < 0.8}
    rows = {row.method: row for row in compare_scores({k: v.astype(float) for k, v in scores.items()}).summaries}
    assert (rows["low"].rank, rows["low"].rank_low, rows["low"].rank_high) == (3, 3, 3)
    assert rows["high"].group == rows["twin"].group == "a"
    assert (rows["high"].rank_low, rows["high"].rank_high) == (1, 2)
    assert rows["low"].interval == "wilson"
