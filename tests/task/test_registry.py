"""Tasks by name, as the contract's samples use them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torchmetrics.classification import MulticlassAccuracy

from fusion_eval.errors import ConfigError
from fusion_eval.task import Task, get_task, list_tasks, register_task, registry

ACCURACY_ONLY = Task(
    battery=lambda num_classes, ignore_index=None: {
        "accuracy": MulticlassAccuracy(num_classes=num_classes, average="micro"),
    },
    predict_fn=lambda model, x: (model(x).argmax(-1), model(x).softmax(-1)),
    prob_metrics=frozenset(),
    description="accuracy-only classification",
)


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    yield
    registry._REGISTERED.clear()


def test_registered_tasks_are_listed_by_name() -> None:
    register_task("acc_only", ACCURACY_ONLY)
    listed = list_tasks()
    assert listed["acc_only"] == "accuracy-only classification"
    assert list(listed) == sorted(listed)
    assert get_task("acc_only") is ACCURACY_ONLY
    assert get_task(ACCURACY_ONLY) is ACCURACY_ONLY


def test_all_domains_are_built_in() -> None:
    expected = {
        "audio", "binary", "classification", "clustering", "detection", "image_quality", "language_modeling",
        "multilabel", "nominal", "regression", "retrieval", "segmentation", "text",
    }  # fmt: skip
    assert set(list_tasks()) == expected
    assert all(list_tasks().values())


def test_names_are_taken_once() -> None:
    with pytest.raises(ConfigError, match=r"'classification' is registered already.*overwrite=True"):
        register_task("classification", ACCURACY_ONLY)
    register_task("mine", ACCURACY_ONLY)
    with pytest.raises(ConfigError, match="registered already"):
        register_task("mine", ACCURACY_ONLY)
    register_task("mine", ACCURACY_ONLY, overwrite=True)


def test_what_is_no_task_or_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a object.*Task"):
        register_task("x", object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="non-empty"):
        register_task("", ACCURACY_ONLY)
    with pytest.raises(ConfigError, match=r"no task 'clasification'.*Did you mean 'classification'"):
        get_task("clasification")


def test_a_task_given_a_set_of_names_keeps_a_frozen_one() -> None:
    task = Task(ACCURACY_ONLY.battery, ACCURACY_ONLY.predict_fn, prob_metrics={"auroc"})  # type: ignore[arg-type]
    assert task.prob_metrics == frozenset({"auroc"})
