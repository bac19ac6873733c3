"""The report of an inspection: on the terminal, as JSON, Markdown and one page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from fusion_eval.errors import Fault, MissingDependencyError, OutputError
from fusion_eval.program.inspect.inspection import Cells, Inspection
from fusion_eval.report.files import write_json, write_text
from fusion_eval.report.report import Report

_LAYERS_SHOWN: Final = 24
_STYLE: Final = (
    "body{font-family:sans-serif;max-width:80em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child"
    "{text-align:left}img,svg{max-width:100%;height:auto}"
)


@dataclass(frozen=True, slots=True)
class InspectReport(Report):
    """A report whose substance is an inspection.

    Args:
        inspection: what was found; None where the run did not come so far.
        picture: whether to draw it.
    """

    inspection: Inspection | None = None
    picture: bool = True

    def show(self, folder: Path | None = None) -> None:
        """Print tables, sentences and where the page lies."""
        from rich.console import Console

        from fusion_eval.report.terminal import show, show_table

        console = Console(soft_wrap=True)
        for title, header, rows in [] if self.inspection is None else self.inspection.tables(_LAYERS_SHOWN):
            show_table(title, header, rows, console)
        for sentence in [] if self.inspection is None else self.inspection.sentences():
            console.print(sentence, markup=False, highlight=False)
        show(self, folder, console)
        if self.inspection is not None and folder is not None:
            console.print(f"page: {folder / 'inspect.html'}", markup=False, highlight=False)

    def write(self, folder: Path) -> None:
        """Write `report.json` and `report.md`, and of an inspection `inspect.json`, `.md`, `.html` and its picture.

        Raises:
            OutputError: the folder cannot be written.
        """
        Report.write(self, folder)
        if self.inspection is None:
            return
        write_json(folder / "inspect.json", self.inspection.as_dict())
        write_text(folder / "inspect.md", as_markdown(self.inspection))
        picture = drawn(self.inspection, folder) if self.picture else ""
        write_text(folder / "inspect.html", as_page(self.inspection, picture))


def drawn(inspection: Inspection, folder: Path) -> str:
    """Write `inspect.png`, or without matplotlib `inspect.svg`, and return what embeds it in a page."""
    from fusion_eval.program.inspect.picture import drawn_by_hand, drawn_by_matplotlib, heat_maps

    try:
        png = drawn_by_matplotlib(inspection)
    except MissingDependencyError:  # the extra `plot` is optional
        svg = drawn_by_hand(heat_maps(inspection))
        write_text(folder / "inspect.svg", svg)
        return svg
    try:
        (folder / "inspect.png").write_bytes(png)
    except OSError as error:
        raise OutputError(Fault(str(folder / "inspect.png"), f"cannot be written ({error.strerror})")) from error
    encoded = base64.b64encode(png).decode()
    return f'<img alt="heat maps of pairs, norms and ranks by layer" src="data:image/png;base64,{encoded}">'


def as_markdown(inspection: Inspection) -> str:
    """Sentences, then every table."""
    lines = ["# Inspection of a model pool", ""]
    lines += [f"- {sentence}" for sentence in inspection.sentences()]
    for title, header, rows in _all_tables(inspection):
        marks = ["---", *("---:" for _ in header[1:])]
        lines += ["", f"## {title}", "", *(f"| {' | '.join(cells)} |" for cells in (header, marks, *rows))]
    return "\n".join(lines) + "\n"


def as_page(inspection: Inspection, picture: str) -> str:
    """One self-contained HTML page."""
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in inspection.sentences())
    tables = "".join(
        f"<h2>{escape(title)}</h2><table><tr>{_cells(header, 'th')}</tr>"
        + "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in rows)
        + "</table>"
        for title, header, rows in _all_tables(inspection)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Inspection of a model pool</title>'
        f"<style>{_STYLE}</style></head><body><h1>Inspection of a model pool</h1><ul>{sentences}</ul>"
        f"{picture}{tables}</body></html>\n"
    )


def _all_tables(inspection: Inspection) -> list[Cells]:
    return inspection.tables()


def _cells(cells: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
