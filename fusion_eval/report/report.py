"""A run's report as programs leave it behind: printed, written, and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.report.content import ReportContent
from fusion_eval.report.files import write_json, write_text
from fusion_eval.report.markdown import as_markdown
from fusion_eval.report.table import Row
from fusion_eval.report.values import ModelResult, TaskResult, Value

SCHEMA = 1
_COLUMNS = ("base", "expert", "merged", "share")


@dataclass(frozen=True, slots=True)
class Report(ReportContent):
    """What a program leaves behind; arguments as of `ReportContent`."""

    def as_dict(self) -> dict[str, Any]:
        """The report as `report.json` has it (schema 1); `report` is the subject's nested dictionary."""
        subject = self.subject
        return {
            "schema": SCHEMA,
            "status": self.status,
            "partial": self.partial,
            "error": self.error,
            "notes": list(self.notes),
            "report": {} if subject is None else subject.as_dict(),
            "table": [_row_dict(row) for row in self.table],
            "models": {model.name: _model_dict(model) for model in self.models},
            "inputs": {name: dict(found) for name, found in self.inputs.items()},
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "receipt": dict(self.receipt),
        }

    def show(self, folder: Path | None = None) -> None:
        """Print the main table, the notes and where the report lies."""
        from fusion_eval.report.terminal import show

        show(self, folder)

    def write(self, folder: Path) -> None:
        """Write `report.json` and `report.md`, each at once.

        Raises:
            OutputError: the folder cannot be written.
        """
        write_json(folder / "report.json", self.as_dict())
        write_text(folder / "report.md", as_markdown(self))


def read_report(folder: Path) -> Report:
    """The report in a folder, without per-item columns.

    Raises:
        ConfigError: there is none, or one of another schema.
    """
    path = folder / "report.json" if folder.is_dir() else folder
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            Fault(str(path), f"not a readable report ({error})", do="Give a run's output folder.")
        ) from error
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        found = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise ConfigError(Fault(str(path), f"report schema {found}", f"schema {SCHEMA}"))
    models = tuple(_model_of(name, model) for name, model in stored["models"].items())
    table = tuple(_row_of(row) for row in stored["table"])
    about = (stored["receipt"], stored["inputs"], stored["seconds"], tuple(stored["notes"]), stored["error"])
    return Report(stored["status"], models, *about, table)


def _row_dict(row: Row) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in _COLUMNS}
    cells = {name: None if value is None else _value_dict(value) for name, value in values.items()}
    return {"task": row.task, "metric": row.metric, **cells, "n": row.n}


def _row_of(stored: Mapping[str, Any]) -> Row:
    base, expert, merged, share = (None if stored[name] is None else _value_of(stored[name]) for name in _COLUMNS)
    return Row(stored["task"], base, expert, merged, share, stored["n"], stored.get("metric", ""))


def _model_dict(model: ModelResult) -> dict[str, Any]:
    return {
        "role": model.role,
        "model_info": dict(model.model_info),
        "seconds": round(model.seconds, 4),
        "shared_items": model.shared_items,
        "tasks": {task.name: _task_dict(task) for task in model.tasks},
        "average": {metric: _value_dict(value) for metric, value in model.average().items()},
    }


def _task_dict(task: TaskResult) -> dict[str, Any]:
    return {
        "n": task.n,
        "partial": task.partial,
        "notes": list(task.notes),
        "metrics": {metric: _value_dict(value) for metric, value in task.metrics.items()},
    }


def _value_dict(value: Value) -> dict[str, Any]:
    return {
        "value": value.value,
        "stderr": value.stderr,
        "interval": None if value.interval is None else list(value.interval),
        "n": value.n,
        "higher_is_better": value.higher_is_better,
    }


def _model_of(name: str, stored: Mapping[str, Any]) -> ModelResult:
    tasks = tuple(
        TaskResult(
            task,
            {metric: _value_of(value) for metric, value in found["metrics"].items()},
            found["n"],
            found["partial"],
            tuple(found["notes"]),
        )
        for task, found in stored["tasks"].items()
    )
    averages = {metric: _value_of(value) for metric, value in stored["average"].items()}
    return ModelResult(
        name, stored["role"], tasks, stored["model_info"], stored["seconds"], stored["shared_items"], averages
    )


def _value_of(stored: Mapping[str, Any]) -> Value:
    interval = stored["interval"]
    return Value(
        stored["value"],
        stored["stderr"],
        stored["n"],
        stored["higher_is_better"],
        None if interval is None else (interval[0], interval[1]),
    )
