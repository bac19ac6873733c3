"""Results of metrics as numbers, and failures as clear errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix

from fusion_eval.errors import DataError, EvaluationError
from fusion_eval.evaluation.measure import check_battery, measure
from fusion_eval.evaluation.rows import Rows
from fusion_eval.task import ArgmaxPredict, Task

ROWS = Rows(torch.arange(6), {"pred": torch.tensor([0, 1, 2, 0, 1, 2]), "target": torch.tensor([0, 1, 1, 0, 2, 2])})


def task_of(**metrics: Metric) -> Task:
    return Task(lambda n, ignore_index=None: metrics, ArgmaxPredict())


class Several(Metric):
    """A metric that gives a dictionary."""

    full_state_update = False
    higher_is_better = True

    def __init__(self, **numbers: float) -> None:
        super().__init__()
        self.numbers = numbers

    def update(self, preds: Tensor, target: Tensor) -> None:
        pass

    def compute(self) -> dict[str, Tensor]:
        return {name: torch.tensor(number) for name, number in self.numbers.items()}


def measured(**metrics: Metric) -> object:
    return measure(ROWS, task_of(**metrics), metrics, "task 't'")


def test_vectors_and_dictionaries_become_several_numbers() -> None:
    found = measure(
        ROWS,
        task_of(),
        {"recall": MulticlassAccuracy(3, average="none"), "both": Several(x=1.0, y=float("nan"))},
        "t",
    )
    assert found.values == pytest.approx({"recall_0": 1.0, "recall_1": 0.5, "recall_2": 0.5, "x": 1.0})
    assert found.source["recall_2"] == "recall"
    assert "y: undefined on these items" in found.notes


def test_names_may_not_clash() -> None:
    with pytest.raises(EvaluationError, match=r"a second value named 'x'.*Rename"):
        measured(first=Several(x=1.0), second=Several(x=2.0))


def test_matrices_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"metric 'cm': a result of shape \(3, 3\)"):
        measured(cm=MulticlassConfusionMatrix(3))


def test_a_metric_that_wants_probabilities_says_how_to_give_them() -> None:
    with pytest.raises(EvaluationError, match=r"metric 'auroc': ValueError.*add 'auroc' to prob_metrics"):
        measured(auroc=MulticlassAUROC(3))
    with pytest.raises(EvaluationError, match="add 'auroc' to prob_metrics"):
        check_battery(ROWS, task_of(), {"auroc": MulticlassAUROC(3)}, "t")


def test_no_items_and_no_values_are_errors() -> None:
    empty = Rows(torch.arange(0), {"pred": torch.empty(0).long(), "target": torch.empty(0).long()})
    with pytest.raises(DataError, match="no items"):
        measure(empty, task_of(), {"acc": MulticlassAccuracy(3)}, "t")
    with pytest.raises(EvaluationError, match=r"no metric has a value.*y: undefined"):
        measured(both=Several(y=float("nan")))


def test_warnings_of_metrics_become_notes() -> None:
    class Warns(Several):
        def compute(self) -> dict[str, Tensor]:
            import warnings

            warnings.warn("mind the gap", UserWarning, stacklevel=1)
            return super().compute()

    found = measure(ROWS, task_of(), {"w": Warns(x=1.0)}, "t")
    assert found.notes == ("w: mind the gap",)


def test_beside_other_metrics_none_need_have_a_value() -> None:
    from fusion_eval.evaluation.measure import measure_some

    found = measure_some(ROWS, task_of(), {"both": Several(y=float("nan"))}, "t")
    assert found.values == {}
    assert found.notes == ("y: undefined on these items",)
