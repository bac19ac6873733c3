"""Batches of every layout as rows, statistics in place of large outputs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassJaccardIndex

from fusion_eval.errors import DataError, EvaluationError
from fusion_eval.evaluation.columns import rebuilt
from fusion_eval.evaluation.measure import measure
from fusion_eval.evaluation.rows import Rows
from fusion_eval.evaluation.statistics import COUNTS, STATES
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.task import Task, classification_battery, get_task
from tests.task.measuring import measured, rows_of
from tests.task.tables import Listed, Table, loader, noise

LOGITS = noise(0, (20, 3))
TARGET = torch.arange(20) % 3


def task_like(name: str, **changes: Any) -> Task:

    return replace(get_task(name), **changes)


class DictRows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"ids": torch.tensor(index), "label": TARGET[index], "w": torch.tensor(float(index % 2))}


def test_rows_hold_predictions_targets_and_wanted_probabilities() -> None:
    rows, _ = rows_of("classification", Table(LOGITS), loader(TARGET, 6), 3)
    assert torch.equal(rows.columns["pred"], LOGITS.argmax(1))
    assert torch.equal(rows.columns["target"], TARGET)
    assert torch.allclose(rows.columns["probs"], LOGITS.softmax(1))
    battery = {"accuracy": get_task("classification").battery(3)["accuracy"]}
    plain = task_like("classification", battery=lambda n, ignore_index=None: battery)
    assert "probs" not in rows_of(plain, Table(LOGITS), loader(TARGET, 6), 3)[0].columns


@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_values_do_not_depend_on_the_batches(batch_size: int) -> None:
    whole = measured("classification", Table(LOGITS), loader(TARGET, 20), 3)
    assert measured("classification", Table(LOGITS), loader(TARGET, batch_size), 3) == whole


def test_dictionary_batches_name_their_label() -> None:
    data = DataLoader(DictRows(), 6)
    task = task_like("classification", fields={"ids": "input", "label": "target", "w": "weight"})
    rows, _ = rows_of(task, Table(LOGITS), data, 3)
    assert rows.columns["weight"].tolist() == [float(i % 2) for i in range(20)]
    pairs = measured("classification", Table(LOGITS), loader(TARGET, 6), 3)
    assert measured(task, Table(LOGITS), data, 3).values == pairs.values


def test_dictionary_entries_reach_the_arguments_of_forward() -> None:
    class Two(Table):
        def forward(self, ids: Tensor, w: Tensor) -> Tensor:
            return super().forward(ids) + 0 * w[:, None]

    found = measured("classification", Two(LOGITS), DataLoader(DictRows(), 6), 3)
    assert found.values == measured("classification", Table(LOGITS), loader(TARGET, 6), 3).values


def test_longer_tuples_need_names() -> None:
    batches = [(torch.arange(20), TARGET, torch.ones(20))]
    with pytest.raises(DataError, match=r'a batch of 3 parts.*fields=\["input", "target", "weight"\]'):
        measured("classification", Table(LOGITS), batches, 3)
    task = task_like("classification", fields=("input", "target", "skip"))
    assert measured(task, Table(LOGITS), batches, 3).items == 20


def test_a_mask_leaves_items_out_and_says_so() -> None:
    mask = torch.arange(20) < 12
    task = task_like("classification", fields=("input", "target", "mask"))
    found = measured(task, Table(LOGITS), [(torch.arange(20), TARGET, mask)], 3)
    part = measured("classification", Table(LOGITS[:12]), loader(TARGET[:12]), 3)
    assert found.values == part.values
    assert found.items == 12
    assert "8 of 20 items are masked out" in found.notes


def test_a_mask_of_elements_counts_elements() -> None:
    output, target = noise(1, (6, 4)), noise(2, (6, 4))
    mask = noise(3, (6, 4)) > 0
    task = task_like("regression", fields=("input", "target", "mask"))
    found = measured(task, Table(output), [(torch.arange(6), target, mask)]).values
    assert found["mse"] == pytest.approx(float((output - target)[mask].square().mean()), abs=1e-6)
    assert found["mae"] == pytest.approx(float((output - target)[mask].abs().mean()), abs=1e-6)


def test_masks_of_pixels_are_void_pixels() -> None:
    target = torch.randint(0, 3, (4, 5, 5), generator=torch.Generator().manual_seed(0))
    logits, mask = noise(4, (4, 3, 5, 5)), noise(5, (4, 5, 5)) > 0
    task = task_like("segmentation", fields=("input", "target", "mask"))
    found = measured(task, Table(logits), [(torch.arange(4), target, mask)], 3).values
    void = target.masked_fill(~mask, 255)
    expected = measured("segmentation", Table(logits), loader(void), 3, 255).values
    assert found == pytest.approx(expected, abs=1e-6)


def test_dense_outputs_become_counts() -> None:
    target = torch.randint(0, 3, (8, 16, 16), generator=torch.Generator().manual_seed(0))
    rows, step = rows_of("segmentation", Table(noise(1, (8, 3, 16, 16))), loader(target, 3), 3)
    assert set(rows.columns) == {COUNTS}
    assert rows.columns[COUNTS].shape == (8, 9)
    assert sum(column.nbytes for column in rows.columns.values()) < target.nbytes / 20
    direct = step.task.battery(3)
    preds = noise(1, (8, 3, 16, 16)).argmax(1)
    found = measure(rows, step.task, step.battery, step.where).values
    for name, metric in direct.items():
        assert found[name] == pytest.approx(float(metric(preds, target)), abs=1e-6)


def test_other_summed_metrics_of_dense_outputs_become_states() -> None:
    target = torch.randint(0, 3, (5, 6, 6), generator=torch.Generator().manual_seed(0))
    logits = noise(1, (5, 3, 6, 6))
    battery = {"jaccard": MulticlassJaccardIndex(3), "f1": get_task("segmentation").battery(3)["dice"]}
    task = task_like("segmentation", battery=lambda n, ignore_index=None: battery)
    rows, step = rows_of(task, Table(logits), loader(target, 2), 3)
    assert rows.columns[STATES + "jaccard"].shape == (5, 9)
    assert "pred" not in rows.columns
    found = measure(rows, task, step.battery, step.where).values
    assert found["jaccard"] == pytest.approx(float(MulticlassJaccardIndex(3)(logits.argmax(1), target)), abs=1e-6)


def test_rows_of_ranks_join_to_the_same_values() -> None:
    images = torch.rand(7, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    rows, step = rows_of(
        "image_quality", Table((images + noise(1, (7, 3, 16, 16), 0.1)).clamp(0, 1)), loader(images, 2)
    )
    halves = [
        Rows(
            rows.ids[part],
            {name: [c[i] for i in part] if isinstance(c, list) else c[part] for name, c in rows.columns.items()},
        )
        for part in (torch.tensor([0, 1, 4, 5]), torch.tensor([2, 3, 6]))
    ]
    joined = Rows.join(halves)
    assert measure(joined, step.task, step.battery, "x") == measure(rows, step.task, step.battery, "x")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_are_an_error(value: float) -> None:
    broken = LOGITS.clone()
    broken[[3, 11]] = value
    with pytest.raises(EvaluationError, match=r"2 of 20 outputs are NaN or infinite \(items 3, 11\)"):
        measured("classification", Table(broken), loader(TARGET, 6), 3)


def test_boxes_that_are_not_finite_are_an_error() -> None:
    truth = [{"boxes": torch.tensor([[0.0, 0, 1, 1]]), "labels": torch.tensor([0])}]
    output = [
        {"boxes": torch.tensor([[0.0, 0, float("nan"), 1]]), "labels": torch.tensor([0]), "scores": torch.ones(1)}
    ]
    with pytest.raises(EvaluationError, match="1 of 1 outputs are NaN"):
        measured("detection", Listed(output), [([0], truth)])


def test_labels_outside_name_items() -> None:
    wrong = TARGET.clone()
    wrong[5] = 7
    with pytest.raises(DataError, match=r"targets outside the 3 classes: 7 \(items 5\).*0 to 2"):
        measured("classification", Table(LOGITS), loader(wrong, 6), 3)
    with pytest.raises(EvaluationError, match=r"3 logits per item for 2 classes"):
        measured("classification", Table(LOGITS), loader(TARGET % 2, 6), 2)


def test_ignored_labels_do_not_count() -> None:
    some = TARGET.clone()
    some[:5] = -1
    found = measured("classification", Table(LOGITS), loader(some), 3, -1).values
    part = measured("classification", Table(LOGITS[5:]), loader(TARGET[5:]), 3).values
    assert found == pytest.approx(part, abs=1e-6)


@pytest.mark.parametrize("result", [LOGITS[:2], (LOGITS,), (LOGITS, LOGITS, LOGITS)])
def test_predict_functions_return_two_things(result: Any) -> None:
    task = task_like("classification", predict_fn=lambda model, x: result)
    with pytest.raises(EvaluationError, match=r"predict_fn: it returned a .*\(predictions, probabilities\)"):
        measured(task, Table(LOGITS), loader(TARGET), 3)


def test_predictions_must_be_one_per_item() -> None:
    task = task_like("classification", predict_fn=lambda model, x: (torch.zeros(2).long(), None), align=None)
    with pytest.raises(EvaluationError, match="pred: 2 entries for a batch of 20 items"):
        measured(task, Table(LOGITS), loader(TARGET), 3)


def test_a_predict_function_without_probabilities_loses_only_what_needs_them() -> None:
    task = task_like("classification", predict_fn=lambda model, x: (model(x).argmax(-1), None))
    found = measured(task, Table(LOGITS), loader(TARGET), 3)
    assert set(found.values) == {"accuracy", "f1", "precision", "recall"}
    assert "auroc: no value, since the model gives no probabilities" in found.notes


def test_mismatched_shapes_are_told_apart() -> None:
    with pytest.raises(EvaluationError, match=r"predictions \(20, 3\) for targets \(20, 2\)"):
        measured("regression", Table(LOGITS), loader(noise(1, (20, 2))), 2)
    with pytest.raises(DataError, match=r"the targets: targets of dtype torch\.float32"):
        measured("classification", Table(LOGITS), loader(TARGET.float()), 3)


def test_users_update_functions_see_everything_once() -> None:
    seen: list[tuple[int, ...]] = []

    def update(battery: Any, preds: Tensor, probs: Tensor, target: Tensor) -> None:
        seen.append((len(preds), len(probs), len(target)))
        for metric in battery.values():
            metric.update(preds, target)

    accuracy = get_task("classification").battery(3)["accuracy"]
    task = task_like("classification", battery=lambda n, ignore_index=None: {"acc": accuracy}, update_fn=update)
    found = measured(task, Table(LOGITS), loader(TARGET, 6), 3)
    assert seen == [(20, 20, 20)]
    assert found.values["acc"] == pytest.approx(float((LOGITS.argmax(1) == TARGET).float().mean()))


def test_nested_targets_come_back_as_they_were() -> None:
    target = {"a": torch.arange(4), "b": (torch.ones(4), torch.zeros(4, 2))}
    task = Task(
        lambda n, ignore_index=None: {"acc": get_task("classification").battery(3)["accuracy"]},
        lambda model, x: (x, None),
        update_fn=lambda battery, preds, probs, target: battery["acc"].update(preds % 3, target["a"] % 3),
    )
    rows, _ = rows_of(task, nn.Identity(), [(torch.arange(4), target), (torch.arange(4), target)], 3)
    back = rebuilt(rows.columns, "target")
    assert torch.equal(back["a"], torch.arange(4).repeat(2))
    assert [part.shape for part in back["b"]] == [(8,), (8, 2)]


def test_ragged_outputs_are_fed_item_by_item() -> None:
    lengths = (3, 5)
    batches = [
        (torch.arange(2), torch.randint(0, 4, (2, t), generator=torch.Generator().manual_seed(t))) for t in lengths
    ]

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, ids: Tensor) -> Tensor:
            self.calls += 1
            return noise(lengths[(self.calls - 1) % 2], (2, lengths[(self.calls - 1) % 2], 4))

    found = measured("language_modeling", Logits(), batches).values
    flat = [(noise(t, (2, t, 4)).reshape(-1, 4), y.reshape(-1)) for t, (_, y) in zip(lengths, batches, strict=True)]
    logits, target = (torch.cat(parts) for parts in zip(*flat, strict=True))
    assert found["perplexity"] == pytest.approx(float(nn.functional.cross_entropy(logits, target).exp()), rel=1e-5)


def test_an_evaluated_model_is_left_as_it_was() -> None:
    model = Table(LOGITS).train()
    measured("classification", model, loader(TARGET), 3)
    assert model.training


def test_a_battery_is_left_without_state() -> None:
    rows, step = rows_of("classification", Table(LOGITS), loader(TARGET), 3)
    measure(rows, step.task, step.battery, step.where)
    assert all(not metric.update_called for metric in step.battery.values())
    assert step.battery["auroc"].preds == []


def test_a_predict_function_of_ones_own_sees_the_head_and_the_models_attributes() -> None:
    head = torch.nn.Linear(3, 2, bias=False)
    model = Table(LOGITS)
    model.note = "kept"
    seen: list[str] = []

    def predict(network: torch.nn.Module, x: Any) -> tuple[Tensor, Tensor]:
        seen.append(network.note)  # type: ignore[arg-type]
        logits = network(x)
        return logits.argmax(-1), logits.softmax(-1)

    task = replace(get_task("classification"), predict_fn=predict)
    step = TaskStep("t", task, classification_battery(2), head)
    found = step.forward(model, (torch.arange(4), TARGET[:4]), range(4))
    assert torch.equal(found["pred"], head(LOGITS[:4]).argmax(-1))
    assert seen == ["kept"]
