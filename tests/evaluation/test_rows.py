"""Rows come together in item order, each item once, or not at all."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import EvaluationError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.gathering import gathered
from fusion_eval.evaluation.rows import Rows


def rows(*ids: int) -> Rows:
    return Rows(torch.tensor(ids, dtype=torch.int64), {"x": torch.tensor(ids).float(), "o": [f"item {i}" for i in ids]})


def test_join_orders_tensors_and_objects_by_id() -> None:
    joined = Rows.join([rows(3, 4), rows(), rows(0, 1, 2)])
    assert joined.ids.tolist() == [0, 1, 2, 3, 4]
    assert joined.columns["x"].tolist() == [0, 1, 2, 3, 4]
    assert joined.columns["o"] == [f"item {i}" for i in range(5)]


def test_join_of_nothing_is_empty() -> None:
    assert len(Rows.join([])) == 0


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (rows(0, 1), "2 rows for 3 items; missing: 2; repeated: none"),
        (rows(0, 1, 1, 2), "4 rows for 3 items; missing: none; repeated: 1"),
        (rows(0, 1, 3), "3 rows for 3 items; missing: 2"),
    ],
)
def test_missing_and_repeated_items_are_named(found: Rows, message: str) -> None:
    with pytest.raises(EvaluationError, match=f"task 't': {message}"):
        gathered(Devices(), found, 3, "task 't'")


def test_a_rank_s_error_is_raised() -> None:
    with pytest.raises(FusionEvalError, match="bad"):
        gathered(Devices(), EvaluationError(Fault("here", "bad")), 3, "task 't'")
