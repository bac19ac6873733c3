from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.harness.outcome import SampleRow
from fusion_eval.harness.sample_table import sample_columns

parquet = pytest.importorskip("pyarrow.parquet")


def row(doc_id: int, metrics: dict[str, Any], **more: Any) -> SampleRow:
    return SampleRow(
        doc_id, {"q": f"\u00fc{doc_id}"}, 1, [("The prompt", " yes"), ("The prompt", " no")],
        [[(-1.0, True)], [(-2.0, False)]], [(-1.0, True), (-2.0, False)], "none", metrics, **more,
    )  # fmt: skip


def test_columns_hold_what_the_rows_hold() -> None:
    found = sample_columns([row(3, {"acc": True, "pairs": (1, 0)}), row(5, {"acc": 0.0}, marks=("context truncated",))])
    assert found["doc_id"] == [3, 5]
    assert found["prompt"] == ["The prompt", "The prompt"]
    assert json.loads(found["requests"][0]) == [["The prompt", " yes"], ["The prompt", " no"]]
    assert json.loads(found["doc"][1]) == {"q": "\u00fc5"}
    assert found["marks"] == [[], ["context truncated"]]
    assert found["metric.acc"] == [1.0, 0.0]
    assert found["metric.pairs"] == ["[1, 0]", None]


def test_the_table_is_read_back_as_written(tmp_path: Path) -> None:
    from fusion_eval.harness.outcome import TaskOutcome
    from fusion_eval.harness.sample_table import write_table

    rows = [row(i, {"acc": i % 2}) for i in range(4)]
    outcome = TaskOutcome.__new__(TaskOutcome)
    object.__setattr__(outcome, "name", "a/task")
    object.__setattr__(outcome, "rows", rows)
    path = write_table(tmp_path, outcome, "2026")
    assert path.name == "samples_a_task_2026.parquet"
    assert parquet.read_table(path).to_pydict() == sample_columns(rows)
    assert list(tmp_path.iterdir()) == [path]
