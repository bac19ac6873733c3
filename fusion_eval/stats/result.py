"""The result of a comparison: what was scored, found and warned about, in every form a paper needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fusion_eval.errors import Fault, StatisticsError, did_you_mean, listed
from fusion_eval.stats.arrays import Ints
from fusion_eval.stats.comparison import Comparison
from fusion_eval.stats.scores import Scores
from fusion_eval.stats.settings import Settings
from fusion_eval.stats.summary import MethodSummary

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Comparisons of methods with all that they rest on.

    Args:
        scores: what was measured, per metric.
        comparisons: one per pair of methods and metric.
        summaries: one per method and metric.
        settings: how it was done.
        clusters: cluster code of every item, or None.
        warnings: what a reader must know, with numbers.
        receipt: versions, and what the caller added.
    """

    scores: tuple[Scores, ...]
    comparisons: tuple[Comparison, ...]
    summaries: tuple[MethodSummary, ...]
    settings: Settings
    clusters: Ints | None = None
    warnings: tuple[str, ...] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods' names."""
        return self.scores[0].methods

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics' names."""
        return tuple(scores.metric for scores in self.scores)

    @property
    def alpha(self) -> float:
        """The level of the tests."""
        return self.settings.alpha

    @property
    def data(self) -> xarray.Dataset:
        """A dataset of one variable (method, seed) per metric, and `<metric>_item` (method, seed, item) for items."""
        from fusion_eval.stats.tables import dataset_of

        return dataset_of(self)

    def to_frame(self) -> pandas.DataFrame:
        """The comparisons as a pandas frame, one row per pair and metric."""
        from fusion_eval.stats.tables import comparison_frame

        return comparison_frame(self)

    def summary(self, reference: str | None = None) -> pandas.DataFrame:
        """One row per method and metric, with the verdict against a reference (default: the settings' or the first)."""
        from fusion_eval.stats.tables import summary_frame

        return summary_frame(self, self.reference_of(reference))

    def reference_of(self, reference: str | None = None) -> str:
        """The method that summaries compare to."""
        chosen = reference or self.settings.reference or self.methods[0]
        if chosen not in self.methods:
            hint = did_you_mean(chosen, self.methods)
            raise StatisticsError(Fault("reference", repr(chosen), f"one of {listed(self.methods, 20)}", hint))
        return chosen

    def comparison(self, metric: str, method_a: str, method_b: str) -> Comparison | None:
        """The comparison of two methods in either order; None when it was not made."""
        pair = {method_a, method_b}
        return next((c for c in self.comparisons if c.metric == metric and {c.method_a, c.method_b} == pair), None)

    def to_markdown(self) -> str:
        """Summary, comparisons and warnings as Markdown."""
        from fusion_eval.stats.export import markdown

        return markdown(self)

    def to_latex(self) -> str:
        """Summary and comparisons as LaTeX tables for the booktabs package."""
        from fusion_eval.stats.export import latex

        return latex(self)

    def to_html(self) -> str:
        """Summary, comparisons and warnings as an HTML fragment."""
        from fusion_eval.stats.export import html

        return html(self)

    def to_csv(self) -> str:
        """The comparisons as CSV with every column."""
        from fusion_eval.stats.export import csv_text

        return csv_text(self)

    def plot(self, metric: str | None = None) -> Figure:
        """Means with intervals, and paired differences with theirs, of one metric (default: the first)."""
        from fusion_eval.stats.plot import figure_of

        return figure_of(self, metric or self.metrics[0])

    def save(self, path: str | Path) -> Path:
        """Write `path` (.json) and the arrays beside it (.npz), each whole or not at all; returns the JSON path."""
        from fusion_eval.stats.store import save_result

        return save_result(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> ComparisonResult:
        """The result that `save` wrote."""
        from fusion_eval.stats.store import load_result

        return load_result(Path(path))

    def as_dict(self) -> dict[str, Any]:
        """Settings, comparisons, summaries, warnings and receipt as plain values, for a report."""
        return {
            "settings": asdict(self.settings),
            "comparisons": [c.as_dict() for c in self.comparisons],
            "summaries": [asdict(row) for row in self.summaries],
            "warnings": list(self.warnings),
            "receipt": dict(self.receipt),
        }

    def __str__(self) -> str:
        lines = [str(found) for found in self.comparisons]
        return "\n".join([*lines, *(f"Warning: {text}." for text in self.warnings)])
