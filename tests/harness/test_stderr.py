from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fusion_eval.harness import aggregation as agg
from fusion_eval.harness.stderr import compat_stderr, peer_picks, stderr

R = random.Random(3)
NUMBERS = [R.gauss(-3, 1) for _ in range(60)]
PAIRS = [(R.randint(0, 1), R.randint(0, 1)) for _ in range(60)]
WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "runs", "far", "away"]
TEXTS = [(" ".join(R.choices(WORDS, k=9)), " ".join(R.choices(WORDS, k=9))) for _ in range(30)]
CASES = [
    (agg.perplexity, NUMBERS),
    (agg.median, NUMBERS),
    (agg.nanmean, NUMBERS),
    (agg.f1, PAIRS),
    (agg.matthews, PAIRS),
]


def slow(function: Callable[[Any], float], items: Sequence[Any], iterations: int) -> float:
    """The peer's bootstrap, replicate by replicate."""
    found = []
    size = min(1000, iterations)
    for chunk in range(iterations // size):
        generator = random.Random(chunk)
        found += [function(generator.choices(items, k=len(items))) for _ in range(size)]
    return float(np.std(found, ddof=1))


@pytest.mark.parametrize(("function", "items"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_the_peers_stream_to_the_last_digits(function: agg.Aggregation, items: Sequence[Any]) -> None:
    assert compat_stderr(function, items, 2000) == pytest.approx(slow(function, items, 2000), rel=1e-11)


@pytest.mark.parametrize("function", [agg.bleu, agg.chrf, agg.ter, agg.chrf_words])
def test_the_peers_stream_of_text_scores(function: agg.Aggregation) -> None:
    assert compat_stderr(function, TEXTS, 20) == pytest.approx(slow(function, TEXTS, 20), rel=1e-9)


@pytest.mark.parametrize(("function", "items"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_closed_forms_agree_with_a_long_bootstrap(function: agg.Aggregation, items: Sequence[Any]) -> None:
    assert stderr(function, items) == pytest.approx(slow(function, items, 4000), rel=0.08)


def test_means_are_exact_and_nothing_else_is_guessed() -> None:
    expected = np.std(NUMBERS, ddof=1) / math.sqrt(60)
    assert stderr(agg.mean, NUMBERS) == pytest.approx(expected)
    assert compat_stderr(agg.mean, NUMBERS) == pytest.approx(expected)
    assert stderr(max, NUMBERS) is None
    assert compat_stderr(max, NUMBERS) is None
    assert stderr(agg.mean, [1.0]) is None
    assert compat_stderr(agg.weighted_perplexity, [(-1.0, 2), (-3.0, 1)]) is None


def test_ratios_by_the_delta_method() -> None:
    items = [(-R.random() * n * 3, n) for n in (R.randint(1, 50) for _ in range(300))]
    assert stderr(agg.bits_per_byte, items) == pytest.approx(slow(agg.bits_per_byte, items, 2000), rel=0.1)
    assert stderr(agg.weighted_perplexity, items) == pytest.approx(slow(agg.weighted_perplexity, items, 2000), rel=0.1)


def test_picks_are_pythons_choices() -> None:
    (picks, second) = peer_picks(17, 2, 3)
    assert picks.ravel().tolist() == random.Random(0).choices(range(17), k=51)
    assert second.ravel().tolist() == random.Random(1).choices(range(17), k=51)
