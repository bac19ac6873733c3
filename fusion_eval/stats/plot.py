"""Plots of a comparison: means and paired differences with their intervals; critical difference diagrams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusion_eval.errors import Fault, StatisticsError, did_you_mean, listed, missing_dependency
from fusion_eval.stats.comparison import BETTER, EQUIVALENT, WORSE, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fusion_eval.stats.content import ResultContent

# Okabe and Ito's colours: distinguishable with any colour vision.
_COLOURS = {BETTER: "#009E73", WORSE: "#D55E00", EQUIVALENT: "#0072B2"}
_GREY = "#666666"


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure that belongs to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_dependency("matplotlib", "plot", "a plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def figure_of(result: ResultContent, metric: str) -> Figure:
    """Two panels: every method's mean with its interval, every pair's difference with its interval and verdict."""
    if metric not in result.metrics:
        hint = did_you_mean(metric, result.metrics)
        raise StatisticsError(Fault("plot", f"metric {metric!r}", f"one of {listed(result.metrics, 20)}", hint))
    pairs = [found for found in result.comparisons if found.metric == metric]
    rows = [row for row in result.summaries if row.metric == metric]
    figure = new_figure(10 if pairs else 5, 1.2 + 0.32 * max(len(pairs), len(rows)))
    left, *right = figure.subplots(1, 2 if pairs else 1, squeeze=False)[0]
    spans = [(row.mean, row.ci_low, row.ci_high) for row in rows]
    _spans(left, [row.method for row in rows], spans, [_GREY] * len(rows))
    left.set_xlabel(f"{_plain(metric)} ({100 * result.settings.level:.4g}% interval)")
    for axes in right:
        _differences(axes, pairs)
    better = next(scores.higher_is_better for scores in result.scores if scores.metric == metric)
    figure.suptitle(f"{_plain(metric)}: {'higher' if better else 'lower'} is better")
    return figure  # type: ignore[no-any-return]


def _differences(axes: Axes, pairs: Sequence[Comparison]) -> None:
    names = [f"{found.method_a} - {found.method_b}" for found in pairs]
    spans = [(found.mean_diff, found.ci_low, found.ci_high) for found in pairs]
    _spans(axes, names, spans, [_COLOURS.get(found.verdict, _GREY) for found in pairs])
    axes.axvline(0.0, color="black", linewidth=0.8)
    rope = pairs[0].rope
    if rope is not None:
        axes.axvspan(-rope, rope, color=_COLOURS[EQUIVALENT], alpha=0.12)
    for place, found in enumerate(pairs):
        axes.annotate(found.verdict, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize="small")
    axes.set_xlabel(f"difference, for {pairs[0].claim}")


def _plain(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def _spans(
    axes: Axes, names: Sequence[str], spans: Sequence[tuple[float, float, float]], colours: Sequence[str]
) -> None:
    for place, ((mean, low, high), colour) in enumerate(zip(spans, colours, strict=True)):
        if not math.isnan(low):
            axes.plot([low, high], [place, place], color=colour, linewidth=2)
        axes.plot([mean], [place], marker="o", color=colour)
    axes.set_yticks(range(len(names)), labels=[_plain(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)


def critical_difference_figure(
    methods: Sequence[str], mean_ranks: Sequence[float], groups: Sequence[Sequence[int]], title: str
) -> Figure:
    """A critical difference diagram (Demsar 2006): mean ranks on a line, bars join methods not shown to differ."""
    order = sorted(range(len(methods)), key=lambda m: mean_ranks[m])
    figure = new_figure(8, 1.4 + 0.3 * (len(order) + len(groups)))
    axes = figure.subplots()
    bars = [group for group in groups if len(group) > 1]
    for place, group in enumerate(bars):
        ends = [mean_ranks[m] for m in group]
        axes.plot([min(ends) - 0.03, max(ends) + 0.03], [-place, -place], color="black", linewidth=4)
    for place, m in enumerate(order):
        rank, height = mean_ranks[m], -len(bars) - place - 0.5
        axes.plot([rank, rank], [1, height], color=_GREY, linewidth=0.8)
        axes.text(rank + 0.05, height, f"{_plain(methods[m])} ({rank:.2f})", va="center")
    axes.set_xlim(0.8, len(order) + 1)
    axes.set_ylim(-len(bars) - len(order), 1)
    axes.xaxis.tick_top()
    axes.yaxis.set_visible(False)
    axes.set_title(title)
    return figure  # type: ignore[no-any-return]
