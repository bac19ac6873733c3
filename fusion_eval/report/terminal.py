"""A report as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fusion_eval.report.content import ReportContent
from fusion_eval.report.markdown import task_notes
from fusion_eval.report.render import columns_of, title_of

_WIDE = 1000


def show(report: ReportContent, folder: Path | None = None, console: Console | None = None) -> None:
    """Print the main table, the notes and where the report lies."""
    console = console or Console(soft_wrap=True)
    if report.models:
        show_table(title_of(report), *columns_of(report), console)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    own = task_notes(report)
    if own:
        more = f" ({len(own) - 1} more on single tasks in report.md)" if len(own) > 1 else ""
        console.print(f"note: {own[0]}{more}", markup=False, highlight=False)
    if folder is not None:
        console.print(f"report: {folder / 'report.json'}", markup=False, highlight=False)


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print cells; names on the left, numbers on the right, the average below a line.

    On a terminal that is too narrow the columns before the last two are left out, most right first; a file gets all.
    """
    kept = list(range(len(header)))
    table = _table(title, header, rows, kept)
    while console.is_terminal and len(kept) > 4 and console.measure(table).maximum > console.width:
        del kept[-3]
        table = _table(f"{title} ({len(header) - len(kept)} columns left out)", header, rows, kept)
    wide = Console(
        file=console.file, width=max(_WIDE, console.width), force_terminal=console.is_terminal, soft_wrap=True
    )
    wide.print(table)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> Table:
    table = Table(title=title, title_justify="left", title_style="", header_style="bold")
    for index in columns:
        table.add_column(header[index], justify="right" if index else "left", no_wrap=True)
    for index, cells in enumerate(rows):
        end = index == len(rows) - 2 and rows[-1][0] == "average"
        table.add_row(*(cells[column] for column in columns), end_section=end)
    return table
