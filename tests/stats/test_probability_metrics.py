from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import auroc, binary_auroc, calibration_error

RNG = np.random.default_rng(4)
TARGET = RNG.integers(0, 3, 150)
ODDS = RNG.normal(size=(150, 3)) + 1.2 * np.eye(3)[TARGET]
PROBABILITIES = np.exp(ODDS) / np.exp(ODDS).sum(axis=1, keepdims=True)
TIED = np.round(PROBABILITIES[:, 0], 1)
WEIGHTS = RNG.integers(0, 4, (4, 150)).astype(float)


def test_binary_area_with_ties_and_weights():
    positive = (TARGET == 0).astype(int)
    metric = binary_auroc(TIED, positive)
    assert metric.value == pytest.approx(roc_auc_score(positive, TIED))
    for row, value in zip(WEIGHTS, metric.of_weights(WEIGHTS), strict=True):
        assert value == pytest.approx(roc_auc_score(positive, TIED, sample_weight=row))


def test_macro_area_is_sklearns():
    assert auroc(PROBABILITIES, TARGET).value == pytest.approx(roc_auc_score(TARGET, PROBABILITIES, multi_class="ovr"))


def test_order_is_all_that_counts():
    metric = binary_auroc(TIED, TARGET == 0)
    assert binary_auroc(TIED * 7 - 100, TARGET == 0).value == metric.value
    assert binary_auroc(-TIED, TARGET == 0).value == pytest.approx(1 - metric.value)


def test_an_absent_class_is_left_out_and_told():
    wide = np.concatenate([PROBABILITIES, RNG.random((150, 2))], axis=1)
    metric = auroc(wide, TARGET)
    assert metric.value == pytest.approx(auroc(PROBABILITIES, TARGET).value)
    assert metric.notes == ("auroc: mean over 3 of 5 classes; no target for 3, 4",)


def test_the_peers_absent_class(oracle):
    """The recorded defect: four outputs, three classes among the targets."""
    torch = pytest.importorskip("torch")
    odds = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    target = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(1))
    recorded = oracle["known_defects"]["auroc_one_absent_class"]
    found = auroc(odds.softmax(-1).numpy(), target.numpy()).value
    assert found == pytest.approx(recorded["mean_over_present_classes"], abs=1e-6)
    assert found != pytest.approx(recorded["mushin"], abs=0.1)


def test_a_class_missing_from_a_resample_is_left_out_of_it():
    weights = np.where(TARGET == 2, 0.0, 1.0)[np.newaxis]
    kept = TARGET != 2
    expected = np.mean([roc_auc_score(TARGET[kept] == c, PROBABILITIES[kept, c]) for c in (0, 1)])
    assert auroc(PROBABILITIES, TARGET).of_weights(weights)[0] == pytest.approx(expected)
    alone = binary_auroc(TIED, TARGET == 0).of_weights(np.where(TARGET == 0, 1.0, 0.0)[np.newaxis])
    assert np.isnan(alone[0])


@pytest.mark.parametrize("metric", [binary_auroc(TIED, TARGET == 0), auroc(PROBABILITIES, TARGET)])
def test_slopes_are_derivatives(metric):
    step = 1e-6
    for item in range(0, 150, 29):
        weights = np.ones((1, 150))
        weights[0, item] += step
        slope = (metric.of_weights(weights)[0] - metric.value) / step
        assert metric.slopes[item] == pytest.approx(slope, abs=1e-7)
    assert metric.slopes.sum() == pytest.approx(0.0, abs=1e-12)


def test_calibration_error_by_hand():
    confidence = np.array([0.95, 0.95, 0.55, 0.55])
    table = np.stack([confidence, 1 - confidence], axis=1)
    metric = calibration_error(table, np.array([0, 0, 0, 1]), bins=10)
    assert metric.value == pytest.approx(0.5 * 0.05 + 0.5 * 0.05)
    assert not metric.higher_is_better
    largest = calibration_error(table, np.array([0, 1, 0, 1]), bins=10, norm="max")
    assert largest.value == pytest.approx(0.45)


def test_calibration_weights_mean_repeated_items():
    metric = calibration_error(PROBABILITIES, TARGET)
    for row, value in zip(WEIGHTS.astype(int), metric.of_weights(WEIGHTS), strict=True):
        repeated = calibration_error(np.repeat(PROBABILITIES, row, axis=0), np.repeat(TARGET, row))
        assert value == pytest.approx(repeated.value)


def test_torchmetrics():
    classification = pytest.importorskip("torchmetrics.classification")
    torch = pytest.importorskip("torch")
    probabilities, target = torch.from_numpy(PROBABILITIES), torch.from_numpy(TARGET)
    expected = classification.MulticlassCalibrationError(3, n_bins=15)(probabilities, target)
    assert calibration_error(PROBABILITIES, TARGET).value == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: binary_auroc([0.1, 0.2], [1, 1]), "both 0 and 1"),
        (lambda: binary_auroc([0.1, 0.2], [0, 1, 1]), "shape (2,)"),
        (lambda: auroc(PROBABILITIES, np.zeros(150, int)), "all targets are class 0"),
        (lambda: auroc(PROBABILITIES, TARGET + 1), "targets from 1 to 3"),
        (lambda: auroc(PROBABILITIES * np.nan, TARGET), "NaN"),
        (lambda: auroc(PROBABILITIES[:, 0], TARGET), "(items, classes)"),
        (lambda: calibration_error(ODDS, TARGET), "softmax"),
        (lambda: calibration_error(PROBABILITIES, TARGET, norm="l2"), "'l1' or 'max'"),
        (lambda: auroc(PROBABILITIES, TARGET.astype(float)), "one class per item"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(StatisticsError) as error:
        call()
    assert words in str(error.value)
