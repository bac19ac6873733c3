"""What a battery offers, and what it says when a metric cannot be had."""

from __future__ import annotations

import pytest
from torchmetrics import Metric

from fusion_eval.errors import ConfigError, EvaluationError, MissingDependencyError
from fusion_eval.task import classification_battery, get_task, list_tasks
from fusion_eval.task.battery import Offer, OfferedBattery, metric_of

PRESENT = metric_of("torchmetrics.regression:MeanSquaredError")


def offline(num_classes: int | None, ignore_index: int | None) -> Metric:
    raise OSError("no network")


BATTERY = OfferedBattery(
    "toys",
    {
        "mse": Offer(PRESENT),
        "absent": Offer(PRESENT, {"a_package_that_is_not_there": "toys"}),
        "heavy": Offer(offline, downloads="weights of a network"),
        "extra": Offer(PRESENT, default=False),
    },
)


def test_a_missing_package_takes_no_other_metric_along() -> None:
    built = BATTERY()
    assert list(built) == ["mse"]
    assert built.unavailable["absent"].endswith('Run: pip install "fusion_eval[toys]"')
    assert "weights of a network" in built.unavailable["heavy"]
    assert "extra" not in built.unavailable


def test_named_metrics_are_built_or_refused() -> None:
    assert list(BATTERY.pick(["extra", "mse"])) == ["extra", "mse"]
    with pytest.raises(MissingDependencyError, match=r'pip install "fusion_eval\[toys\]"'):
        BATTERY.pick(["absent"])
    with pytest.raises(EvaluationError, match=r"weights of a network cannot be had \(no network\)"):
        BATTERY.pick(["heavy"])
    with pytest.raises(ConfigError, match=r"no metric 'mes'.*Did you mean 'mse'"):
        BATTERY.pick(["mes"])


def test_batteries_are_fresh_every_time() -> None:
    first, second = BATTERY(), BATTERY()
    assert first["mse"] is not second["mse"]


def test_classification_wants_a_number_of_classes() -> None:
    with pytest.raises(ConfigError, match="num_classes: not given"):
        classification_battery(None)
    with pytest.raises(ConfigError, match=r"at least 2.*'binary'"):
        classification_battery(1)
    battery = classification_battery(10)
    del battery["ece"]
    assert list(battery) == ["accuracy", "f1", "precision", "recall", "auroc"]


@pytest.mark.parametrize("name", list(list_tasks()))
def test_every_offer_that_needs_nothing_more_can_be_built(name: str) -> None:
    task = get_task(name)
    assert isinstance(task.battery, OfferedBattery)
    for metric, offer in task.battery.offers.items():
        if not offer.downloads and offer.missing(metric) is None:
            built = task.battery.pick([metric], 6)[metric]
            assert isinstance(built, Metric)
            assert built.sync_on_compute is False


@pytest.mark.parametrize("name", list(list_tasks()))
def test_probability_metrics_are_offered(name: str) -> None:
    task = get_task(name)
    assert isinstance(task.battery, OfferedBattery)
    assert task.prob_metrics <= set(task.battery.names)
