"""A report as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fusion_eval.report.render import columns_of, title_of
from fusion_eval.report.report import Report

_WIDE = 120


def show(report: Report, folder: Path | None = None, console: Console | None = None) -> None:
    """Print the main table, the notes and where the report lies."""
    console = console or Console(soft_wrap=True)
    if report.models:
        show_table(title_of(report), *columns_of(report), console)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    if folder is not None:
        console.print(f"report: {folder / 'report.json'}", markup=False, highlight=False)


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print cells; names on the left, numbers on the right, the average below a line."""
    table = Table(title=title, title_justify="left", title_style="", header_style="bold")
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for index, cells in enumerate(rows):
        table.add_row(*cells, end_section=index == len(rows) - 2 and rows[-1][0] == "average")
    if not console.is_terminal or console.width < _WIDE:
        console = Console(file=console.file, width=max(_WIDE, console.width), soft_wrap=True)
    console.print(table)
