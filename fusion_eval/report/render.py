"""Values and tables as text."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_eval.report.content import ReportContent
from fusion_eval.report.table import Row, main_metric, metric_of
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


def columns_of(report: ReportContent) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of a run's main table; with tasks of different metrics it names each one's."""
    rows, mixed = report.table, differ(report)
    percent = [(row.metric or main_metric(report.models)) in PERCENT for row in rows]
    offered = {
        column: [shown(getattr(row, column), scale) for row, scale in zip(rows, percent, strict=True)]
        for column in ("base", "expert", "merged")
    }
    offered["merged / expert"] = [shown(row.share, True) for row in rows]
    kept = {name: cells for name, cells in offered.items() if any(cell != "-" for cell in cells)}
    if not kept or not _plain(rows):
        return _by_model(report, mixed)
    header = ["task", *(["metric"] if mixed else []), "items", *kept]
    return header, [
        [row.task, *([_named(row.metric)] if mixed else []), _count(row), *(cells[i] for cells in kept.values())]
        for i, row in enumerate(rows)
    ]


def differ(report: ReportContent) -> bool:
    """Whether the rows of the main table are of different metrics."""
    return len({row.metric for row in report.table}) > 1


def _named(metric: str) -> str:
    return f"{metric} (%)" if metric in PERCENT else metric


def title_of(report: ReportContent) -> str:
    """What the table shows."""
    metric = main_metric(report.models)
    if metric is None:
        return "no tasks, so nothing is measured"
    named = "the main metric of each task" if differ(report) else _named(metric)
    partial = "; PARTIAL: a limit left items out" if report.partial else ""
    unfinished = {"running": "; UNFINISHED: the run did not end", "failed": "; FAILED: the run ended early"}
    return f"{named} with 95 % intervals{partial}{unfinished.get(report.status, '')}"


def _plain(rows: Sequence[Row]) -> bool:
    """Whether experts, where there are any, could be matched with tasks."""
    return any(row.merged is not None for row in rows)


def _by_model(report: ReportContent, mixed: bool) -> tuple[list[str], list[list[str]]]:
    """One column per model, for pools whose experts are not named after tasks, and for runs without a merge."""
    names = list(dict.fromkeys(task.name for model in report.models for task in model.tasks))
    header = ["task", *(["metric"] if mixed else []), *(model.name for model in report.models)]
    cells = []
    for name in names:
        metric = metric_of(report.models, name)
        found = [{task.name: task for task in model.tasks}.get(name) for model in report.models]
        values = (shown(task.metrics.get(metric) if task else None, metric in PERCENT) for task in found)
        cells.append([name, *([_named(metric)] if mixed else []), *values])
    if mixed or len(cells) < 2:
        return header, cells
    main = main_metric(report.models) or ""
    averages = [shown(model.average().get(main), main in PERCENT) for model in report.models]
    return header, [*cells, ["average", *averages]]


def _count(row: Row) -> str:
    return "-" if row.n is None else f"{row.n:,}"
