"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_eval.report.content import ReportContent
from fusion_eval.report.render import columns_of, title_of
from fusion_eval.report.values import Value


def as_markdown(report: ReportContent) -> str:
    """The main table, every metric of every model, notes and the circumstances."""
    parts = [f"# fusion_eval report: {report.status}", ""]
    if report.error:
        parts += ["```", report.error, "```", ""]
    if report.models:
        parts += [f"{title_of(report)}.", "", *_table(*columns_of(report)), ""]
        parts += ["## Every metric", "", *_metrics(report), ""]
    notes = [*report.notes, *task_notes(report)]
    if notes:
        parts += ["## Notes", "", *(f"- {note}" for note in notes), ""]
    return "\n".join([*parts, *_circumstances(report)]) + "\n"


def main_table(report: ReportContent) -> str:
    """The main table with its title, for a model card; empty where nothing was measured."""
    if not report.table:
        return ""
    return "\n".join([f"{title_of(report)}.", "", *_table(*columns_of(report))]) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    marks = ["---", *("---:" for _ in header[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (header, marks, *rows)]


def _metrics(report: ReportContent) -> list[str]:
    header = ["model", "role", "task", "metric", "value", "standard error", "95 % interval", "items"]
    rows = [
        [model.name, model.role, task.name, metric, f"{value.value:.6g}", *_uncertainty(value)]
        for model in report.models
        for task in model.tasks
        for metric, value in task.metrics.items()
    ]
    return _table(header, rows)


def _uncertainty(value: Value) -> list[str]:
    ends = "-" if value.interval is None else f"{value.interval[0]:.4g} to {value.interval[1]:.4g}"
    return [_maybe(value.stderr), ends, _maybe(value.n)]


def task_notes(report: ReportContent) -> list[str]:
    """What is noteworthy about single tasks, with the model and the task."""
    return [
        f"{model.name}, {task.name}: {note}" for model in report.models for task in model.tasks for note in task.notes
    ]


def _circumstances(report: ReportContent) -> list[str]:
    lines = ["## Circumstances", ""]
    overrides = report.receipt.get("overrides")
    if overrides is not None:
        command = " ".join(["fusion_eval", *overrides])
        lines.append(f"- command: `{command}`")
    for name, found in report.inputs.items():
        lines.append(f"- {name}: {found.get('source')} ({str(found.get('fingerprint'))[:16]})")
    versions = report.receipt.get("versions", {})
    lines.append("- versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    lines.append("- seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in report.seconds.items()))
    return lines


def _maybe(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}" if isinstance(number, float) else f"{number}"
