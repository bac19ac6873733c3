"""The picture of an inspection: heat maps of pairs, norms and ranks by layer; by matplotlib, else as an SVG by hand."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import numpy as np

from fusion_eval.errors import missing_dependency
from fusion_eval.merge.diagnosis import Array
from fusion_eval.merge.diagnosis_pool import nan_mean
from fusion_eval.program.inspect.inspection import Inspection

_CELL: Final = 34
_LABEL: Final = 120
_NUMBERED: Final = 14  # rows and columns up to which cells hold their numbers
_DARK: Final = 0.4  # distance from the middle of the colours beyond which ink is white
_BLUE, _RED = (33, 102, 172), (178, 24, 43)


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A matrix to draw.

    Args:
        title: what it shows.
        rows: names of rows.
        columns: names of columns.
        values: (rows, columns); NaN cells stay grey.
        low: the value drawn blue; `middle` is white.
        middle: the value drawn white.
        high: the value drawn red.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Array
    low: float
    middle: float
    high: float


def heat_maps(inspection: Inspection) -> list[HeatMap]:
    """Cosines, sign conflicts and subspace overlaps of pairs, and norms by expert and layer."""
    found = inspection.diagnosis
    names, sums, whole = found.experts, found.whole().sums, found.whole()
    maps = []
    if len(names) > 1:
        conflicts = sums.conflicts()
        np.fill_diagonal(conflicts, np.nan)
        maps.append(HeatMap("cosine", names, names, sums.cosines(), -1, 0, 1))
        maps.append(HeatMap("opposite signs (0.5 by chance)", names, names, conflicts, 0, 0.5, 1))
    if whole.matrices and len(names) > 1:
        overlaps = np.array([matrix.overlap for matrix in whole.matrices])
        seen = ~np.isnan(overlaps)
        mean = np.where(seen.any(0), np.where(seen, overlaps, 0).sum(0) / np.maximum(seen.sum(0), 1), np.nan)
        chance = nan_mean([matrix.chance for matrix in whole.matrices])
        title = f"overlap of leading subspaces ({chance:.2f} by chance)"
        maps.append(HeatMap(title, names, names, mean, 0, chance, 1))
    parts = found.layers()
    norms = np.array([part.sums.relative_norms() if found.has_base else part.sums.norms() for part in parts])
    most = float(np.nanmax(norms)) if np.isfinite(norms).any() else 1.0
    title = "norm / base's norm by layer" if found.has_base else "norm by layer"
    maps.append(HeatMap(title, tuple(part.name for part in parts), names, norms, -most, 0, most or 1.0))
    return maps


def drawn_by_hand(maps: Sequence[HeatMap]) -> str:
    """A self-contained SVG of the heat maps, one below the other."""
    parts: list[str] = []
    top, width = 10, 0
    for heat_map in maps:
        parts.extend(_rectangles(heat_map, top))
        top += _LABEL + 40 + _CELL * len(heat_map.rows)
        width = max(width, 2 * _LABEL + _CELL * len(heat_map.columns))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
        'font-family="sans-serif" font-size="11" role="img">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def drawn_by_matplotlib(inspection: Inspection) -> bytes:
    """A PNG: the heat maps of pairs above, norms and ranks by layer below.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_dependency("matplotlib", "plot", "inspect.png") from error
    *pairs, _ = heat_maps(inspection)
    columns = max(2, len(pairs))
    size = max(4.2, 0.34 * len(inspection.diagnosis.experts) + 2)
    figure = Figure(figsize=(size * columns, size * (2 if pairs else 1)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 if pairs else 1, 2 * columns)
    for index, heat_map in enumerate(pairs):
        _draw(figure, figure.add_subplot(grid[0, 2 * index : 2 * index + 2]), heat_map)
    _norms(figure.add_subplot(grid[-1, :columns]), inspection)
    _ranks(figure.add_subplot(grid[-1, columns:]), inspection)
    out = io.BytesIO()
    canvas.print_figure(out, format="png")
    return out.getvalue()


def colour(value: float, heat_map: HeatMap) -> str:
    """A colour from blue over white to red; grey for NaN."""
    if math.isnan(value):
        return "#cccccc"
    edge, end = (heat_map.high, _RED) if value >= heat_map.middle else (heat_map.low, _BLUE)
    span = edge - heat_map.middle
    share = min(1.0, (value - heat_map.middle) / span) if span else 0.0
    return "#" + "".join(f"{round(255 + share * (part - 255)):02x}" for part in end)


def _rectangles(heat_map: HeatMap, top: int) -> Iterator[str]:
    yield f'<text x="10" y="{top + 14}" font-size="14">{escape(heat_map.title)}</text>'
    top += _LABEL
    numbered = max(len(heat_map.columns), 1) <= _NUMBERED
    for column, name in enumerate(heat_map.columns):
        x = _LABEL + _CELL * column + _CELL // 2 + 4
        yield f'<text x="{x}" y="{top - 6}" transform="rotate(-60 {x} {top - 6})">{escape(name)}</text>'
    for row, name in enumerate(heat_map.rows):
        y = top + _CELL * row
        yield f'<text x="{_LABEL - 6}" y="{y + 21}" text-anchor="end">{escape(name)}</text>'
        for column, value in enumerate(heat_map.values[row].tolist()):
            x = _LABEL + _CELL * column
            label = f"{heat_map.rows[row]}, {heat_map.columns[column]}: {value:.4f}"
            yield (
                f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{colour(value, heat_map)}">'
                f"<title>{escape(label)}</title></rect>"
            )
            if numbered and not math.isnan(value):
                yield f'<text x="{x + 16}" y="{y + 21}" text-anchor="middle" font-size="10">{value:.2f}</text>'


def _draw(figure: Any, axes: Any, heat_map: HeatMap) -> None:
    from matplotlib.colors import TwoSlopeNorm

    norm = TwoSlopeNorm(heat_map.middle, heat_map.low, heat_map.high)
    image = axes.imshow(heat_map.values, cmap="RdBu_r", norm=norm)
    axes.set_title(heat_map.title, fontsize=10)
    axes.set_xticks(range(len(heat_map.columns)), heat_map.columns, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(heat_map.rows)), heat_map.rows, fontsize=8)
    if len(heat_map.columns) <= _NUMBERED:
        for (row, column), value in np.ndenumerate(heat_map.values):
            if not math.isnan(value):
                dark = abs(float(norm(value)) - 0.5) > _DARK
                ink = "white" if dark else "black"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
    figure.colorbar(image, ax=axes, shrink=0.8)


def _norms(axes: Any, inspection: Inspection) -> None:
    found = inspection.diagnosis
    parts = found.layers()
    for index, name in enumerate(found.experts):
        norms = [(part.sums.relative_norms() if found.has_base else part.sums.norms())[index] for part in parts]
        axes.plot(range(len(parts)), norms, marker=".", label=name)
    axes.set_title("norm / base's norm by layer" if found.has_base else "norm by layer", fontsize=10)
    _layer_ticks(axes, [part.name for part in parts])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _ranks(axes: Any, inspection: Inspection) -> None:
    parts = [part for part in inspection.diagnosis.layers() if part.matrices]
    for trait in ("effective", "stable"):
        axes.plot(range(len(parts)), [part.mean(trait) for part in parts], marker=".", label=f"{trait} rank")
    sides = [nan_mean([float(matrix.side) for matrix in part.matrices]) for part in parts]
    axes.plot(range(len(parts)), sides, color="grey", linestyle=":", label="highest possible")
    axes.set_title("ranks by layer, means over experts", fontsize=10)
    _layer_ticks(axes, [part.name for part in parts])
    if parts:
        axes.set_yscale("log")
        axes.legend(fontsize=7)


def _layer_ticks(axes: Any, names: Sequence[str]) -> None:
    step = max(1, len(names) // 30)
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=60, ha="right", fontsize=7)
