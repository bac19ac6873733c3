"""Results as Markdown, LaTeX, HTML and CSV text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

from fusion_eval.stats.comparison import Comparison
from fusion_eval.stats.scores import Scores
from fusion_eval.stats.tables import summary_rows

if TYPE_CHECKING:
    from fusion_eval.stats.content import ResultContent

Table = tuple[list[str], list[list[str]]]

_LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\^{}",
    }
    | {"\\": r"\textbackslash{}", "<": r"\textless{}", ">": r"\textgreater{}"}
)


def number(value: float | None, digits: int = 4) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def p_text(p: float) -> str:
    """A p-value with three digits, never rounded to zero."""
    if math.isnan(p):
        return "-"
    return "<0.0001" if p < 1e-4 else f"{p:.3g}"


def summary_table(result: ResultContent) -> Table:
    """Method, metric, mean with interval, rank and the verdict against the reference."""
    reference = result.reference_of()
    level = f"{100 * result.settings.level:.4g}% interval"
    head = ["method", "metric", "mean", level, "how", "rank", "group", f"vs {reference}"]
    rows = []
    for row in summary_rows(result, reference):
        ranks = number(row["rank"])
        if row["rank_low"] is not None:
            ranks += f" ({row['rank_low']}-{row['rank_high']})"
        ends = "none" if math.isnan(row["ci_low"]) else f"{number(row['ci_low'])} to {number(row['ci_high'])}"
        verdict = row["verdict_vs_ref"] or ("reference" if row["method"] == reference else "")
        rows.append(
            [row["method"], row["metric"], number(row["mean"]), ends, row["interval"], ranks, row["group"], verdict]
        )
    return head, rows


def comparison_table(result: ResultContent) -> Table:
    """Pairs with difference, interval, p, verdict, claim and minimal detectable effect."""
    head = ["metric", "a", "b", "a - b", "interval", "p", "p corrected", "verdict", "covers", "detectable", "test", "n"]
    return head, [_row(found) for found in result.comparisons]


def _row(found: Comparison) -> list[str]:
    return [
        found.metric,
        found.method_a,
        found.method_b,
        f"{found.mean_diff:+.4g}",
        f"{number(found.ci_low)} to {number(found.ci_high)}",
        p_text(found.p_value),
        p_text(found.p_corrected),
        found.verdict,
        found.claim,
        number(found.mde, 3),
        found.test,
        f"{found.n_units} {found.unit}",
    ]


def method_line(result: ResultContent) -> str:
    """What was done: correction, family, level and what the items were."""
    settings = result.settings
    family = "the pairs of one metric" if settings.family == "metric" else "the pairs of all metrics"
    sizes = "; ".join(_size(scores) for scores in result.scores)
    clusters = "" if result.clusters is None else f" {int(result.clusters.max()) + 1} clusters."
    return f"p corrected by {settings.correction} over {family}, alpha {settings.alpha:g}. {sizes}.{clusters}"


def _size(scores: Scores) -> str:
    runs = f"{scores.n_runs} run{'s' if scores.n_runs > 1 else ''}"
    direction = "higher" if scores.higher_is_better else "lower"
    return f"{scores.metric}: {scores.n_items or 'no'} items, {runs}, {direction} is better"


def remarks(result: ResultContent) -> list[str]:
    """Warnings of the result, and notes of its comparisons: once where several pairs of a metric share them."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for found in result.comparisons:
        for note in found.notes:
            pairs.setdefault((found.metric, note), []).append(f"{found.method_a} - {found.method_b}")
    notes = [
        f"{metric}, {names[0] if len(names) == 1 else f'{len(names)} pairs'}: {note}"
        for (metric, note), names in pairs.items()
    ]
    return [*result.warnings, *notes]


def markdown(result: ResultContent) -> str:
    """Two Markdown tables, what was done, and the warnings."""
    parts = [_markdown_table(summary_table(result)), _markdown_table(comparison_table(result)), method_line(result)]
    if remarks(result):
        parts.append("\n".join(f"- Warning: {_cell(text)}" for text in remarks(result)))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _markdown_table(table: Table) -> str:
    head, rows = table
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def latex(result: ResultContent) -> str:
    """Two tabular environments with booktabs rules."""
    tables = [_latex_table(summary_table(result)), _latex_table(comparison_table(result))]
    notes = [f"% {text}" for text in (method_line(result), *remarks(result))]
    return "\n\n".join([*tables, "\n".join(note.replace("\n", " ") for note in notes)]) + "\n"


def _latex_table(table: Table) -> str:
    head, rows = table
    lines = [rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\toprule", _latex_row(head), r"\midrule"]
    lines += [_latex_row(row) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"


def html(result: ResultContent) -> str:
    """Two HTML tables, what was done, and the warnings, all text escaped."""
    parts = [_html_table(summary_table(result), "Methods"), _html_table(comparison_table(result), "Comparisons")]
    parts.append(f"<p>{escape(method_line(result))}</p>")
    if remarks(result):
        items = "".join(f"<li>{escape(text)}</li>" for text in remarks(result))
        parts.append(f'<ul class="warnings">{items}</ul>')
    return "\n".join(parts) + "\n"


def _html_table(table: Table, caption: str) -> str:
    head, rows = table
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    caption_tag = f"<caption>{escape(caption)}</caption>"
    return f"<table>{caption_tag}<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def csv_text(result: ResultContent) -> str:
    """Every column of every comparison as CSV."""
    buffer = io.StringIO()
    rows: list[dict[str, Any]] = [{**c.as_dict(), "notes": "; ".join(c.notes)} for c in result.comparisons]
    names = [field.name for field in fields(Comparison)]
    writer = csv.DictWriter(buffer, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
