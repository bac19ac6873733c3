from __future__ import annotations

import numpy as np
import pytest

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import Scores, label_metric

RNG = np.random.default_rng(0)


def test_one_run_or_several():
    one = Scores.from_items("accuracy", {"a": [1, 0, 1], "b": (True, False, False)})
    assert (one.n_runs, one.n_items, one.methods) == (1, 3, ("a", "b"))
    assert one.values[:, 0] == pytest.approx([2 / 3, 1 / 3])
    several = Scores.from_items("accuracy", {"a": RNG.random((4, 9)), "b": RNG.random((4, 9))})
    assert (several.n_runs, several.n_items, several.seeds) == (4, 9, (0, 1, 2, 3))


def test_tensors_are_arrays():
    torch = pytest.importorskip("torch")
    scores = Scores.from_items("m", {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([True, False])})
    assert scores.values.tolist() == [[0.5], [0.5]]


def test_metrics_that_are_no_mean():
    target = RNG.integers(0, 3, 40)
    metrics = {m: [label_metric("f1", RNG.integers(0, 3, 40), target, 4) for _ in range(2)] for m in "ab"}
    scores = Scores.from_metrics("f1", metrics)
    assert (scores.n_runs, scores.n_items) == (2, 40)
    assert scores.values[1, 0] == metrics["b"][0].value
    assert len(scores.notes) == 1
    plain = scores.without_functions()
    assert scores.has_items
    assert not plain.has_items
    assert plain.n_items == 40


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({}, "0 methods"),
        ({"a": [1, 0]}, "1 methods"),
        ({"a": [1, 0, 1], "b": [1, 0]}, "'a' has 3, 'b' has 2"),
        ({"a": np.ones((2, 4)), "b": np.ones((1, 4))}, "unequal numbers of runs"),
        ({"a": [], "b": []}, "no scores"),
        ({"a": [1, float("nan")], "b": [1, 0]}, "method 'a': 1 of 2"),
        ({"a": RNG.random((5, 1)), "b": RNG.random((5, 1))}, "5 runs of one item"),
        ({"a": RNG.random((2, 2, 2)), "b": RNG.random((2, 2, 2))}, "(runs, items)"),
        ({0: [1, 0], 1: [0, 1]}, "method names 0, 1"),
        ({"": [1, 0], "b": [0, 1]}, "non-empty"),
        ({"a": ["x", "y"], "b": [0, 1]}, "not an array of numbers"),
        ({"a": [[1, 0], [1]], "b": [0, 1]}, "not an array of numbers"),
    ],
)
def test_bad_items(scores, words):
    with pytest.raises(StatisticsError) as error:
        Scores.from_items("accuracy", scores)
    assert words in str(error.value)


def test_all_faults_come_at_once():
    with pytest.raises(StatisticsError) as error:
        Scores.from_items("accuracy", {"a": [float("nan")], "b": [], "c": ["x"]})
    assert len(error.value.faults) == 3


def test_seeds_have_names():
    scores = Scores.from_values("m", {"a": [0.1, 0.2], "b": [0.1, 0.3]}, seeds=(7, 42))
    assert scores.seeds == (7, 42)
    for seeds in ((1,), (3, 3)):
        with pytest.raises(StatisticsError, match="2 different seeds"):
            Scores.from_items("m", {"a": np.ones((2, 4)), "b": np.ones((2, 4))}, seeds=seeds)


def test_ragged_seeds():
    with pytest.raises(StatisticsError, match="'a' has 2, 'b' has 3"):
        Scores.from_values("accuracy", {"a": [0.1, 0.2], "b": [0.1, 0.2, 0.3]})
    with pytest.raises(StatisticsError, match="one value per run"):
        Scores.from_values("accuracy", {"a": [[0.1, 0.2]], "b": [[0.1, 0.2]]})
    target = RNG.integers(0, 2, 9)
    metric, shorter = label_metric("f1", target, target, 2), label_metric("f1", target[:8], target[:8], 2)
    with pytest.raises(StatisticsError, match="unequal numbers of items"):
        Scores.from_metrics("f1", {"a": metric, "b": shorter})
    with pytest.raises(StatisticsError, match="no runs"):
        Scores.from_metrics("f1", {"a": [], "b": []})
