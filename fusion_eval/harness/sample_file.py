"""Per-document rows as files: the peer's JSONL layout, written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.outcome import SampleRow, TaskOutcome
from fusion_eval.harness.peer_utils import handle_non_serializable, hash_string


def sample_record(row: SampleRow) -> dict[str, Any]:
    """A row under the peer's keys, values as they are."""
    prompt = row.arguments[0][0] if row.arguments else ""
    record: dict[str, Any] = {
        "doc_id": row.doc_id,
        "doc": row.doc,
        "target": row.target,
        "arguments": row.arguments,
        "resps": row.resps,
        "filtered_resps": row.filtered,
        "filter": row.pipeline,
        "metrics": list(row.metrics),
        "doc_hash": hash_string(_dumped(row.doc, indent=2)),
        "prompt_hash": hash_string(str(prompt)),
        "target_hash": hash_string(str(row.target)),
        **row.metrics,
    }
    if row.marks:
        record["marks"] = list(row.marks)
    return record


def written_record(row: SampleRow) -> dict[str, Any]:
    """A row as the peer's command line writes it: arguments by name, responses and target as strings."""
    record = sample_record(row)
    record["arguments"] = {
        f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(arguments)}
        for i, arguments in enumerate(row.arguments)
    }
    record["resps"] = _strings(row.resps)
    record["filtered_resps"] = _strings(row.filtered)
    record["target"] = str(row.target)
    return record


def write_samples(folder: Path, outcome: TaskOutcome, date: str) -> Path:
    """Write `samples_<task>_<date>.jsonl`, complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{file_name(outcome.name)}_{date}.jsonl"
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        for row in outcome.rows:
            file.write(_dumped(written_record(row)) + "\n")
    temporary.replace(path)
    return path


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Rows of a sample file, the peer's or ours.

    Raises:
        DataError: a line that is not a row, with its number.
    """
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(Fault(f"{path}:{number}", f"is not JSON: {error}", "one row per line")) from error
            if not isinstance(row, dict) or "doc_id" not in row:
                raise DataError(Fault(f"{path}:{number}", "has no doc_id", "a row of a samples_*.jsonl file"))
            rows.append(row)
    return rows


def metric_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[Any, float]]:
    """`metric,pipeline` -> document id -> value, of all metrics that are one number per document."""
    found: dict[str, dict[Any, float]] = {}
    for row in rows:
        for metric in row.get("metrics", ()):
            value = row.get(metric)
            if isinstance(value, (int, float)):
                found.setdefault(f"{metric},{row.get('filter', 'none')}", {})[row["doc_id"]] = float(value)
    return found


def file_name(task: str) -> str:
    """A task's name without characters that file systems refuse."""
    return "".join("_" if c in '"<>:/|?*\\[]' else c for c in task)


def _dumped(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else handle_non_serializable(value)


def _strings(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, str):
        made: Sequence[Any] = [_strings(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    return str(value)
