"""CPU seconds of comparing models with 10,000 bootstrap resamples, beside a resample-by-resample loop.

scripts/bench statistics [--models 10] [--items 50000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from fusion_eval.stats import Scores, auroc, compare_metrics, compare_scores, label_metric

LOOPED = 20


def cpu(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def looped(scores: dict[str, np.ndarray]) -> float:
    """CPU seconds of 10,000 resamples drawn one by one, from a few of them."""
    table = np.stack(list(scores.values()))
    rng = np.random.default_rng(0)

    def draw() -> None:
        for _ in range(LOOPED):
            table[:, rng.integers(0, table.shape[1], table.shape[1])].mean(axis=1)

    return cpu(draw) * 10_000 / LOOPED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--items", type=int, default=50_000)
    size = parser.parse_args()
    rng = np.random.default_rng(0)
    right = {f"m{i}": (rng.random(size.items) < 0.7 + 0.003 * i).astype(float) for i in range(size.models)}
    continuous = {name: row * rng.random(size.items) for name, row in right.items()}
    clusters = np.arange(size.items) // 5
    target = rng.integers(0, 10, size.items)
    wrong = rng.integers(0, 10, size.items)
    f1 = {n: label_metric("f1", np.where(row == 1, target, wrong), target, 10) for n, row in right.items()}
    areas = {n: auroc(rng.random((size.items, 10)), target) for n in right}
    cases: dict[str, Callable[[], object]] = {
        "right or wrong": lambda: compare_scores(right),
        "right or wrong, BCa": lambda: compare_scores(right, interval="bca"),
        "right or wrong, clusters of 5": lambda: compare_scores(right, clusters=clusters),
        "continuous": lambda: compare_scores(continuous),
        "macro F1": lambda: compare_metrics([Scores.from_metrics("f1", f1)]),
        "macro AUROC": lambda: compare_metrics([Scores.from_metrics("auroc", areas)]),
    }
    print(f"{size.models} models, {size.items} items, 10000 resamples; CPU seconds")
    for name, case in cases.items():
        print(f"{name:32s} {cpu(case):8.2f}")
    print(f"{'one resample at a time (scaled)':32s} {looped(right):8.2f}")


if __name__ == "__main__":
    main()
