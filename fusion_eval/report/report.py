"""A run's report: what was measured on which models, and the circumstances."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.report.files import write_json, write_text
from fusion_eval.report.table import Row, rows_of
from fusion_eval.report.values import ModelResult, TaskResult, Value

SCHEMA = 1
_COLUMNS = ("base", "expert", "merged", "share")


@dataclass(frozen=True, slots=True)
class Report:
    """What a program leaves behind.

    Args:
        status: "complete", "running" (so far; or killed), "failed" or "dry run".
        models: results in the order of evaluation.
        receipt: versions, git, configuration, overrides, seed, devices.
        inputs: source and fingerprint of every checkpoint that was read.
        seconds: wall time by phase.
        notes: what a reader must know.
        error: what a failed run failed with.
        table: the main metric by task; made of `models` where it is not given.
    """

    status: str
    models: tuple[ModelResult, ...] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None
    table: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        if not self.table:
            object.__setattr__(self, "table", rows_of(self.models))

    @property
    def partial(self) -> bool:
        """Whether a limit left items of any task out."""
        return any(task.partial for model in self.models for task in model.tasks)

    @property
    def subject(self) -> ModelResult | None:
        """The model that the run is about: the merged one, else the last."""
        merged = [model for model in self.models if model.role == "merged"]
        return (merged or list(self.models) or [None])[-1]  # type: ignore[list-item]

    def model(self, role: str) -> ModelResult | None:
        """The first model of a role."""
        return next((model for model in self.models if model.role == role), None)

    def without_items(self) -> Report:
        """The same report without per-item columns."""
        models = tuple(
            replace(model, tasks=tuple(replace(task, items={}, forms={}) for task in model.tasks))
            for model in self.models
        )
        return replace(self, models=models)

    def objective(self, path: str) -> float:
        """A number such as `average.accuracy` or `mnist.loss` of the subject, or `base/average.accuracy`.

        Raises:
            ConfigError: the report has no such number.
        """
        name, slash, inner = path.rpartition("/")
        named = {model.name: model for model in self.models}
        subject = named.get(name) if slash else self.subject
        numbers = {} if subject is None else _flat(subject.as_dict())
        if inner not in numbers:
            raise ConfigError(
                Fault(
                    "objective",
                    f"no number '{path}' in the report",
                    f"one of {listed(sorted(numbers), 12)}",
                    did_you_mean(inner, numbers),
                )
            )
        return float(numbers[inner])

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
        from fusion_eval.report.markdown import as_markdown

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


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            numbers.update(_flat(value, f"{prefix}{key}."))
        else:
            numbers[f"{prefix}{key}"] = value
    return numbers
