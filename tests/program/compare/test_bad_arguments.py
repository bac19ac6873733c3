"""Odd arguments, data and outputs: a right answer, or one clear error before or where it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fusion_eval import compare
from fusion_eval.errors import ConfigError, DataError, EvaluationError, FusionEvalError, StatisticsError

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3


class Linear(nn.Module):
    """Logits, changed by a function."""

    def __init__(self, seed: int = 0, then: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.then = nn.Linear(4, 3), then

    def forward(self, x: torch.Tensor) -> Any:
        """The logits, or what the function makes of them."""
        logits = self.linear(x)
        return logits if self.then is None else self.then(logits)


def asked(then: Callable[[torch.Tensor], Any] | None = None, **changes: Any) -> Any:
    options = {"data": [(X, Y)], "num_classes": 3, "metrics": ["accuracy", "f1", "auroc"], "resamples": 200, **changes}
    methods = options.pop("methods", {"a": Linear(0, then), "b": Linear(1, then)})
    return compare(methods, options.pop("data"), **options)


class Broken(Dataset[Any]):
    """A data set that says it is longer than it is."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


def raising() -> nn.Module:
    raise ValueError("boom")


TWO = {"a": [Linear(0), Linear(1)], "b": [Linear(2), Linear(3)]}
ARGUMENTS: dict[str, tuple[dict[str, Any], type[FusionEvalError], str]] = {
    "no test": ({"test": None}, ConfigError, "test: None; expected one of auto"),
    "no correction": ({"correction": None}, ConfigError, "correction: None"),
    "level as text": ({"alpha": "0.05"}, ConfigError, "alpha: '0.05'; expected a number"),
    "rope as text": ({"rope": "0.1"}, ConfigError, "rope: '0.1'"),
    "rope of no metric": ({"rope": {"acuracy": 0.1}}, StatisticsError, "no metric 'acuracy'.*Did you mean 'accuracy'"),
    "half a resample": ({"resamples": 1000.5}, ConfigError, "resamples: 1000.5; expected a whole number"),
    "seed below zero": ({"seed": -1}, ConfigError, "seed: -1"),
    "a number as reference": ({"reference": 3}, ConfigError, "reference: 3; expected a method's name"),
    "reference": ({"reference": "c"}, ConfigError, "reference: 'c'; expected one of a, b"),
    "classes as text": ({"num_classes": "3"}, ConfigError, "num_classes: '3'; expected a whole number"),
    "classes as float": ({"num_classes": 3.0}, ConfigError, "num_classes: 3.0"),
    "ignored text": ({"ignore_index": "0"}, ConfigError, "ignore_index: '0'"),
    "one number of seeds": ({"methods": TWO, "seeds": 2}, ConfigError, "seeds: a int; expected 2 whole numbers"),
    "seeds twice": ({"methods": TWO, "seeds": [1, 1]}, ConfigError, "seeds: 1, 1; expected a different one"),
    "seeds as text": ({"methods": TWO, "seeds": ["x", "y"]}, ConfigError, "seeds: 'x', 'y'"),
    "seeds of one run": ({"unit": "seeds"}, StatisticsError, "unit='seeds'.*one run of every method"),
    "clusters in rows": ({"clusters": np.zeros((60, 2))}, StatisticsError, "clusters: the label .*one text or number"),
    "clusters without a test": ({"clusters": [1] * 60, "test": "mcnemar"}, ConfigError, "test='mcnemar': clustered"),
    "a misspelt role": (
        {"data": [(X, Y, torch.ones(60))], "fields": ["input", "target", "wieght"]},
        DataError,
        "'wieght', which is no role and no argument of Linear.forward.*Did you mean 'weight'",
    ),
    "a role twice": ({"data": [(X, Y, Y)], "fields": ["input", "target", "target"]}, ConfigError, "'target' twice"),
    "a short data set": ({"data": Broken()}, ConfigError, "data, first batch: reading failed with IndexError"),
    "texts as labels": ({"data": [(X, ["a"] * 60)]}, DataError, "targets such as 'a'; expected class indices"),
    "all ignored": (
        {"data": [(X, torch.full_like(Y, -1))], "ignore_index": -1},
        DataError,
        "every target is -1, which ignore_index leaves out",
    ),
    "a failing loader": ({"methods": {"a": raising}}, EvaluationError, "method 'a', the model: its function failed"),
    "no weights": (
        {"methods": {"a": nn.Linear(4, 3, device="meta")}},
        EvaluationError,
        "no data in weight, bias .device 'meta'",
    ),
    "other classes": ({"num_classes": 10}, EvaluationError, "3 logits per item for 10 classes"),
}


@pytest.mark.parametrize("case", list(ARGUMENTS))
def test_arguments_that_cannot_be_used(case: str) -> None:
    changes, kind, message = ARGUMENTS[case]
    with pytest.raises(kind, match=f"(?s){message}"):
        asked(**changes)


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda o: o.to(torch.complex64), "dtype torch.complex64; expected real numbers"),
        (lambda o: o > 0, "dtype torch.bool; expected real numbers"),
        (lambda o: o.to("meta"), "a tensor without data"),
    ],
)
def test_outputs_that_are_no_logits(then: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        asked(then)


@pytest.mark.parametrize(
    "then",
    [
        lambda o: o.to_sparse(),
        lambda o: o.T.contiguous().T,
        lambda o: (o, None),
        lambda o: {"out": o},
        lambda o: o.double(),
    ],
)
def test_outputs_of_other_layouts_are_the_same(then: Any) -> None:
    assert repr(asked(then).comparisons) == repr(asked().comparisons)


def test_data_of_other_types_are_the_same() -> None:
    expected = repr(asked().comparisons)
    for data in (
        [(X.numpy(), Y.numpy())],
        [(X, Y.tolist())],
        [(X, Y.int())],
        [(X, Y[:, None])],
        [(X, Y.float().long())],
    ):
        assert repr(asked(data=data).comparisons) == expected


def test_whole_numbers_may_be_kept_as_floats() -> None:
    def predict(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model(x).argmax(-1).float(), model(x).softmax(-1)

    assert asked(predict_fn=predict).data["accuracy"].equals(asked().data["accuracy"])
    with pytest.raises(EvaluationError, match="no whole numbers; expected class indices"):
        asked(predict_fn=lambda model, x: (model(x)[:, 0], model(x).softmax(-1)))


def test_a_failing_loader_takes_no_other_method_along() -> None:
    found = asked(methods={"a": raising, "b": Linear(0), "c": Linear(1)}, on_error="drop")
    assert found.methods == ("b", "c")
    assert "method 'a' is left out" in found.warnings[0]


def test_very_many_classes_need_no_table_of_classes_by_classes() -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Logits of 30,000 classes, the right one first for every second item."""
            logits = torch.zeros(len(x), 30_000)
            logits[torch.arange(len(x)), Y[: len(x)] + 20_000 * (torch.arange(len(x)) % 2)] = 5.0
            return logits

    metrics = ["accuracy", "f1", "precision", "recall"]
    found = asked(methods={"a": Wide(), "b": Wide()}, num_classes=30_000, metrics=metrics)
    assert float(found.data["accuracy"][0, 0]) == 0.5
    assert float(found.data["f1"][0, 0]) == pytest.approx(3 * (2 / 3) / 6)


def test_a_rope_may_name_a_metric_that_is_not_tested() -> None:
    from torchmetrics.classification import MulticlassAccuracy
    from torchmetrics.wrappers import BootStrapper

    torch.manual_seed(0)
    metrics = {"accuracy": MulticlassAccuracy(3), "several": BootStrapper(MulticlassAccuracy(3), num_bootstraps=2)}
    found = asked(metrics=metrics, rope={"accuracy": 0.5, "mean": 0.5})
    assert found.comparisons[0].rope == 0.5
