"""What a comparison found, with all that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fusion_eval.errors import Fault, StatisticsError, did_you_mean, listed
from fusion_eval.stats.arrays import Ints
from fusion_eval.stats.comparison import Comparison
from fusion_eval.stats.scores import Scores
from fusion_eval.stats.settings import Settings
from fusion_eval.stats.summary import MethodSummary


@dataclass(frozen=True, slots=True)
class ResultContent:
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
        compared = {found.metric for found in self.comparisons}
        lines = [str(found) for found in self.comparisons]
        lines += [str(row) for row in self.summaries if row.metric not in compared]
        return "\n".join([*lines, *(f"Warning: {text.rstrip('.')}." for text in self.warnings)])
