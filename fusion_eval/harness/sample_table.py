"""Per-document rows as a Parquet table: one row per document and filter pipeline, one column per metric."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_eval.errors import missing_dependency
from fusion_eval.harness.outcome import SampleRow, TaskOutcome
from fusion_eval.harness.peer_utils import handle_non_serializable
from fusion_eval.harness.sample_file import file_name

METRIC = "metric."


def sample_columns(rows: Sequence[SampleRow]) -> dict[str, list[Any]]:
    """Columns of equal length.

    `doc_id`, `filter`, `prompt` (of the first request), `requests`, `responses`, `filtered`, `target` and `doc` (JSON),
    `marks`, and `metric.NAME`: a number, or JSON where a metric is none; null where a document has no such metric.
    """
    columns: dict[str, list[Any]] = {
        "doc_id": [row.doc_id for row in rows],
        "filter": [row.pipeline for row in rows],
        "prompt": [str(row.arguments[0][0]) if row.arguments else "" for row in rows],
        "requests": [_json(row.arguments) for row in rows],
        "responses": [_json(row.resps) for row in rows],
        "filtered": [_json(row.filtered) for row in rows],
        "target": [_json(row.target) for row in rows],
        "doc": [_json(row.doc) for row in rows],
        "marks": [list(row.marks) for row in rows],
    }
    for name in dict.fromkeys(metric for row in rows for metric in row.metrics):
        columns[METRIC + name] = _metric([row.metrics.get(name) for row in rows])
    return columns


def write_table(folder: Path, outcome: TaskOutcome, date: str) -> Path:
    """Write `samples_<task>_<date>.parquet`, complete or not at all.

    Raises:
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_dependency("pyarrow", "language", "samples as a table") from error
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{file_name(outcome.name)}_{date}.parquet"
    temporary = path.with_suffix(".tmp")
    parquet.write_table(pyarrow.table(sample_columns(outcome.rows)), temporary)
    temporary.replace(path)
    return path


def _metric(values: Sequence[Any]) -> list[Any]:
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    if all(value is None or isinstance(value, (bool, int, float)) for value in plain):
        return [None if value is None else float(value) for value in plain]
    return [None if value is None else _json(value) for value in plain]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else handle_non_serializable(value)
