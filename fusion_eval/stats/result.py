"""The result of a comparison: what was scored, found and warned about, in every form a paper needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from fusion_eval.stats import export, plot, store, tables
from fusion_eval.stats.content import ResultContent

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True, slots=True)
class ComparisonResult(ResultContent):
    """Comparisons of methods with all that they rest on; arguments as of `ResultContent`."""

    @property
    def data(self) -> xarray.Dataset:
        """A dataset of one variable (method, seed) per metric, and `<metric>_item` (method, seed, item) for items."""
        return tables.dataset_of(self)

    def to_frame(self) -> pandas.DataFrame:
        """The comparisons as a pandas frame, one row per pair and metric."""
        return tables.comparison_frame(self)

    def summary(self, reference: str | None = None) -> pandas.DataFrame:
        """One row per method and metric, with the verdict against a reference (default: the settings' or the first)."""
        return tables.summary_frame(self, self.reference_of(reference))

    def to_markdown(self) -> str:
        """Summary, comparisons and warnings as Markdown."""
        return export.markdown(self)

    def to_latex(self) -> str:
        """Summary and comparisons as LaTeX tables for the booktabs package."""
        return export.latex(self)

    def to_html(self) -> str:
        """Summary, comparisons and warnings as an HTML fragment."""
        return export.html(self)

    def to_csv(self) -> str:
        """The comparisons as CSV with every column."""
        return export.csv_text(self)

    def plot(self, metric: str | None = None) -> Figure:
        """Means with intervals, and paired differences with theirs, of one metric (default: the first)."""
        return plot.figure_of(self, metric or self.metrics[0])

    def save(self, path: str | Path) -> Path:
        """Write `path` (.json) and the arrays beside it (.npz), each whole or not at all; returns the JSON path."""
        return store.save_result(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> ComparisonResult:
        """The result that `save` wrote."""
        return store.load_result(Path(path), cls)
