"""The summary of a sweep: one row per job, failed ones too, as a table, JSON, Markdown and a page."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.report.files import write_json, write_text
from fusion_eval.report.render import PERCENT, shown
from fusion_eval.report.report import Report, read_report
from fusion_eval.report.table import AVERAGE, main_metric

STATUS_FILE = "status.json"


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a sweep.

    Args:
        name: its folder's name.
        status: "completed", "failed" or "running" (killed, or not finished).
        overrides: its overrides.
        error: what it failed with.
        report: its report, or None.
    """

    name: str
    status: str
    overrides: tuple[str, ...]
    error: str | None
    report: Report | None


class SweepSummary(Callback):
    """Writes and shows the summary when a sweep ends."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Summarise the sweep's folder; a folder without jobs is left as it is."""
        folder = Path(config.hydra.sweep.dir)
        if any(folder.glob(f"*/{STATUS_FILE}")):
            show_summary(folder)


def jobs_of(folder: Path) -> list[Job]:
    """The jobs in a sweep's folder, in the order of their numbers.

    Raises:
        ConfigError: the folder has none.
    """
    files = sorted(folder.glob(f"*/{STATUS_FILE}"), key=lambda file: (len(file.parent.name), file.parent.name))
    if not files:
        raise ConfigError(Fault(str(folder), "no jobs of a sweep", do="Give the folder that `fusion_eval -m` wrote."))
    return [_job(file) for file in files]


def summarise(folder: Path) -> tuple[list[str], list[list[str]]]:
    """Write `sweep.json`, `sweep.md` and `sweep.html` into a sweep's folder; returns the table's header and rows.

    May be called again at any time, from any process.

    Raises:
        ConfigError: the folder has no jobs.
    """
    jobs = jobs_of(folder)
    header, rows = _table(jobs)
    write_json(folder / "sweep.json", {"schema": 1, "jobs": [_job_dict(job) for job in jobs]})
    notes = _notes(jobs)
    write_text(folder / "sweep.md", _markdown(header, rows, notes))
    write_text(folder / "sweep.html", _page(header, rows, notes))
    return header, rows


def show_summary(folder: Path) -> None:
    """Write the summary and print its table."""
    from rich.console import Console

    from fusion_eval.report.terminal import show_table

    header, rows = summarise(folder)
    console = Console(soft_wrap=True)
    show_table(f"sweep of {len(rows)} jobs", header, rows, console)
    for note in _notes(jobs_of(folder)):
        console.print(f"note: {note}", markup=False, highlight=False)
    console.print(f"summary: {folder / 'sweep.html'}", markup=False, highlight=False)


def _job(file: Path) -> Job:
    try:
        status: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        status = {"status": "failed", "overrides": [], "error": f"{file} cannot be read"}
    report = None
    if (file.parent / "report.json").exists():
        try:
            report = read_report(file.parent)
        except FusionEvalError:
            report = None
    return Job(file.parent.name, status["status"], tuple(status.get("overrides", ())), status.get("error"), report)


def _table(jobs: Sequence[Job]) -> tuple[list[str], list[list[str]]]:
    settings = [dict(override.partition("=")[::2] for override in job.overrides) for job in jobs]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    varying = [key for key in keys if len({setting.get(key) for setting in settings}) > 1] or keys
    metric = next((main_metric(job.report.models) for job in jobs if job.report and job.report.models), None)
    tasks = list(dict.fromkeys(row.task for job in jobs if job.report for row in job.report.table))
    shares = any(row.share for job in jobs if job.report for row in job.report.table)
    header = ["job", *varying, "status", *tasks, *(["merged / expert"] if shares else [])]
    rows = []
    for job, setting in zip(jobs, settings, strict=True):
        cells = _cells(job, metric, tasks, shares)
        rows.append([job.name, *(setting.get(key, "-") for key in varying), _status(job), *cells])
    return header, rows


def _cells(job: Job, metric: str | None, tasks: Sequence[str], shares: bool) -> list[str]:
    found = {} if job.report is None else {row.task: row for row in job.report.table}
    subject = None if job.report is None else job.report.subject
    by_task = {name: row.metric or metric or "" for name, row in found.items()}
    results = (
        {}
        if subject is None
        else {task.name: task.metrics.get(by_task.get(task.name, metric or "")) for task in subject.tasks}
    )
    averages = {} if subject is None else subject.average()
    last_row = found.get(AVERAGE)
    average = (last_row.merged if last_row is not None else None) or averages.get(metric or "")
    values = [average if task == AVERAGE else results.get(task) for task in tasks]
    percent = [by_task.get(task, metric) in PERCENT for task in tasks]
    cells = [shown(value, scale) for value, scale in zip(values, percent, strict=True)]
    cells = [*(cell.partition(" ")[0] for cell in cells[:-1]), *cells[-1:]]
    if not shares:
        return cells
    last = found.get(AVERAGE) or next(iter(found.values()), None)
    return [*cells, shown(last.share if last else None, True)]


def _status(job: Job) -> str:
    if job.status == "completed" and job.report is None:
        return "NO REPORT"
    if job.status == "completed" and job.report is not None and job.report.partial:
        return "PARTIAL"
    return {"completed": "ok", "running": "UNFINISHED", "failed": "FAILED"}.get(job.status, job.status)


def _notes(jobs: Sequence[Job]) -> list[str]:
    notes = []
    for job in jobs:
        if job.error:
            notes.append(f"job {job.name} failed: {job.error}")
        elif job.status == "running":
            notes.append(f"job {job.name} did not finish")
    partial = [job.name for job in jobs if job.report is not None and job.report.partial]
    if partial and len(partial) < len(jobs):
        notes.append(f"partial results ({', '.join(partial)}) cannot be compared with full ones")
    return notes


def _job_dict(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "status": job.status,
        "overrides": list(job.overrides),
        "error": job.error,
        "report": None if job.report is None else job.report.as_dict()["report"],
        "partial": None if job.report is None else job.report.partial,
    }


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    marks = ["---"] * len(header)
    lines = [f"| {' | '.join(cells)} |" for cells in (header, marks, *rows)]
    return "\n".join(["# fusion_eval sweep", "", *lines, "", *(f"- {note}" for note in notes)]) + "\n"


def _page(header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """One self-contained page; a click on a column's name sorts by it."""
    head = "".join(f'<th scope="col"><button>{html.escape(name)}</button></th>' for name in header)
    body = "".join(
        f'<tr class="{"bad" if any(mark in cells for mark in ("FAILED", "UNFINISHED", "NO REPORT")) else ""}">'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for cells in rows
    )
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return _PAGE.replace("{head}", head).replace("{body}", body).replace("{notes}", listed)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fusion_eval sweep</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1a1a1a; background: #fff; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
th button { font: inherit; font-weight: 600; border: 0; background: none; cursor: pointer; padding: 0; color: inherit; }
tr.bad { color: #a00; }
@media (prefers-color-scheme: dark) {
  body { color: #eee; background: #161616; } th, td { border-color: #444; } tr.bad { color: #f88; }
}
</style></head><body>
<h1>fusion_eval sweep</h1>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<ul>{notes}</ul>
<script>
document.querySelectorAll("th").forEach((th, column) => th.querySelector("button").addEventListener("click", () => {
  const body = document.querySelector("tbody"), up = th.getAttribute("aria-sort") !== "ascending";
  const value = row => { const text = row.cells[column].textContent, n = parseFloat(text);
    return isNaN(n) ? text : n; };
  const order = (a, b) => { const x = value(a), y = value(b);
    return typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1; };
  document.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a)).forEach(row => body.append(row));
}));
</script></body></html>
"""
