"""Ten models on 50,000 items with 10,000 resamples, whatever the scores; scripts/bench measures how long that takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fusion_eval.stats import compare_scores

ITEMS = 50_000


def scores(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    right = {f"m{i}": (rng.random(ITEMS) < 0.7 + 0.003 * i).astype(float) for i in range(10)}
    return right if kind == "right or wrong" else {name: row * rng.random(ITEMS) for name, row in right.items()}


@pytest.mark.parametrize("kind", ["right or wrong", "continuous"])
def test_many_models_on_many_items(kind):
    result = compare_scores(scores(kind))
    assert len(result.comparisons) == 45
    assert result.settings.resamples == 10_000


def test_memory_does_not_grow_with_the_resamples():
    table = scores("continuous")
    tracemalloc.start()
    compare_scores({name: table[name] for name in ("m0", "m1")}, resamples=3000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
