"""Average precision without copies: scikit-learn's value, and scores that stay where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassAveragePrecision, MultilabelAveragePrecision

from fusion_eval.task.metric.precision import PresentClassPrecision, PresentLabelPrecision, average_precision


def table(items: int = 60, columns: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(items, columns, generator=torch.Generator().manual_seed(seed)).softmax(1)


@pytest.mark.parametrize("digits", [1, 6])
def test_the_area_is_scikit_learns_with_ties_too(digits: int) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    scores, positive = np.round(table()[:, 0].numpy(), digits), np.arange(60) % 3 == 0
    assert average_precision(scores, positive) == pytest.approx(sklearn.average_precision_score(positive, scores))


def test_values_are_those_of_torchmetrics() -> None:
    scores, labels = table(), torch.arange(60) % 4
    mine, theirs = PresentClassPrecision(4), MulticlassAveragePrecision(4)
    for part in (slice(0, 25), slice(25, 60)):
        mine.update(scores[part], labels[part])
        theirs.update(scores[part], labels[part])
    assert float(mine.compute()) == pytest.approx(float(theirs.compute()), abs=1e-6)
    truth = (table(seed=1) > 0.25).long()
    for ignored in (None, -1):
        given = truth.clone()
        if ignored is not None:
            given[:9, 1] = ignored
        own, other = (kind(4, ignore_index=ignored) for kind in (PresentLabelPrecision, MultilabelAveragePrecision))
        own.update(scores, given)
        other.update(scores, given)
        assert float(own.compute()) == pytest.approx(float(other.compute()), abs=1e-6)


def test_scores_are_not_copied_and_absent_classes_named() -> None:
    scores, metric = table(), PresentClassPrecision(4)
    metric.update(scores, torch.arange(60) % 3)
    assert metric.preds[0].data_ptr() == scores.data_ptr()
    with pytest.warns(UserWarning, match="mean over 3 of 4 classes; no curve for 3"):
        metric.compute()
