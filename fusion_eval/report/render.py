"""Values and tables as text."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_eval.report.report import Report
from fusion_eval.report.table import Row, main_metric
from fusion_eval.report.values import Value

PERCENT = (
    "accuracy",
    "f1",
    "precision",
    "recall",
    "auroc",
    "exact_match",
    "acc",
    "acc_norm",
    "pass@1",
    "miou",
    "dice",
)


def shown(value: Value | None, percent: bool) -> str:
    """A value and its 95 % interval, such as `71.4 [67.3, 75.2]`."""
    if value is None:
        return "-"
    scale, digits = (100, 1) if percent else (1, 4)
    text = f"{value.value * scale:.{digits}f}"
    if value.interval is None:
        return text
    low, high = value.interval
    return f"{text} [{low * scale:.{digits}f}, {high * scale:.{digits}f}]"


def columns_of(report: Report) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of a run's main table."""
    metric, rows = main_metric(report.models), report.table
    percent = metric in PERCENT
    offered = {
        "base": [shown(row.base, percent) for row in rows],
        "expert": [shown(row.expert, percent) for row in rows],
        "merged": [shown(row.merged, percent) for row in rows],
        "merged / expert": [shown(row.share, True) for row in rows],
    }
    kept = {name: cells for name, cells in offered.items() if any(cell != "-" for cell in cells)}
    if not kept or not _plain(rows):
        return _by_model(report, metric, percent)
    header = ["task", "items", *kept]
    return header, [[row.task, _count(row), *(cells[i] for cells in kept.values())] for i, row in enumerate(rows)]


def title_of(report: Report) -> str:
    """What the table shows."""
    metric = main_metric(report.models)
    if metric is None:
        return "no tasks, so nothing is measured"
    unit = " (%)" if metric in PERCENT else ""
    partial = "; PARTIAL: a limit left items out" if report.partial else ""
    unfinished = {"running": "; UNFINISHED: the run did not end", "failed": "; FAILED: the run ended early"}
    return f"{metric}{unit} with 95 % intervals{partial}{unfinished.get(report.status, '')}"


def _plain(rows: Sequence[Row]) -> bool:
    """Whether experts, where there are any, could be matched with tasks."""
    return any(row.merged is not None for row in rows)


def _by_model(report: Report, metric: str | None, percent: bool) -> tuple[list[str], list[list[str]]]:
    """One column per model, for pools whose experts are not named after tasks, and for runs without a merge."""
    names = list(dict.fromkeys(task.name for model in report.models for task in model.tasks))
    header = ["task", *(model.name for model in report.models)]
    cells = []
    for name in names:
        found = [{task.name: task for task in model.tasks}.get(name) for model in report.models]
        cells.append([name, *(shown(task.metrics.get(metric or "") if task else None, percent) for task in found)])
    averages = [shown(model.average().get(metric or ""), percent) for model in report.models]
    return header, [*cells, ["average", *averages]] if len(cells) > 1 else cells


def _count(row: Row) -> str:
    return "-" if row.n is None else f"{row.n:,}"
