from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as reference

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import count_metric, counts_of_confusion, label_counts, label_metric, map_counts

RNG = np.random.default_rng(8)
TARGET = RNG.integers(0, 4, 200)
GUESS = np.where(RNG.random(200) < 0.6, TARGET, RNG.integers(0, 4, 200))


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("precision", reference.precision_score),
        ("recall", reference.recall_score),
        ("f1", reference.f1_score),
        ("iou", reference.jaccard_score),
    ],
)
def test_sklearn(form, function, average):
    found = label_metric(form, GUESS, TARGET, 4, average=average)
    assert found.value == pytest.approx(function(TARGET, GUESS, average=average))


@pytest.mark.parametrize("form", ["accuracy", "f1", "precision", "recall", "iou"])
def test_weights_mean_repeated_items(form):
    weights = RNG.integers(0, 4, (3, 200)).astype(float)
    found = label_metric(form, GUESS, TARGET, 4).of_weights(weights)
    for row, value in zip(weights.astype(int), found, strict=True):
        repeated = label_metric(form, np.repeat(GUESS, row), np.repeat(TARGET, row), 4)
        assert value == pytest.approx(repeated.value)


def test_absent_classes_do_not_count_and_are_told():
    found = label_metric("f1", GUESS, TARGET, 6)
    assert found.value == pytest.approx(label_metric("f1", GUESS, TARGET, 4).value)
    assert "2 of 6 classes" in found.notes[0]
    assert "4, 5" in found.notes[0]
    assert label_metric("f1", GUESS, TARGET, 4).notes == ()


def test_maps_count_pixels_and_ignore_void_ones():
    target = RNG.integers(0, 3, (5, 6, 6))
    guess = np.where(RNG.random((5, 6, 6)) < 0.7, target, 0)
    target[:, 0, 0] = 255
    found = count_metric("iou", map_counts(guess, target, 3, ignore=255))
    kept = target != 255
    assert found.n_items == 5
    assert found.value == pytest.approx(reference.jaccard_score(target[kept], guess[kept], average="macro"))


def test_confusion_matrices_are_another_way_in():
    matrix = reference.confusion_matrix(TARGET, GUESS)
    from_labels = np.asarray(label_counts(GUESS, TARGET, 4).sum(axis=0)).ravel()
    assert counts_of_confusion(matrix) == pytest.approx(from_labels)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: label_metric("f1", GUESS, TARGET, 3), "labels 3"),
        (lambda: label_metric("f1", GUESS[:5], TARGET, 4), "5 labels"),
        (lambda: label_metric("precison", GUESS, TARGET, 4), "Did you mean 'precision'"),
        (lambda: label_metric("f1", GUESS, TARGET, 4, average="weighted"), "macro"),
        (lambda: label_metric("f1", GUESS * 1.0, TARGET, 4), "whole number"),
        (lambda: label_metric("f1", [], [], 4), "whole number"),
        (lambda: map_counts([GUESS], [TARGET, TARGET], 4), "1 maps"),
        (lambda: map_counts([GUESS[:3]], [TARGET], 4), "3 pixels"),
    ],
)
def test_bad_labels(call, words):
    with pytest.raises(StatisticsError) as error:
        call()
    assert words in str(error.value)
