"""What a test of one pair of methods found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

ITEMS, CLUSTERS, SEEDS, CROSSED, TASKS = "items", "clusters", "seeds", "seeds x items", "tasks"

CLAIMS = {
    ITEMS: "these checkpoints",
    CLUSTERS: "these checkpoints",
    SEEDS: "the recipe on these items",
    CROSSED: "the recipe",
    TASKS: "other tasks",
}


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one test.

    Args:
        test: the test's name.
        unit: what it counts as independent: items, clusters, seeds, seeds x items, tasks.
        p: the two-sided p-value; NaN when there is nothing to test, with the reason in `notes`.
        low: lower end of the interval of the mean difference.
        high: upper end.
        stderr: standard error of the mean difference.
        df: its degrees of freedom.
        floor: the smallest p the test can give here.
        n_units: the number of independent units.
        effect: the standardised effect.
        notes: what a reader must know.
    """

    test: str
    unit: str
    p: float
    low: float
    high: float
    stderr: float
    df: float
    floor: float = 0.0
    n_units: int = 0
    effect: float = math.nan
    notes: tuple[str, ...] = ()

    @property
    def claim(self) -> str:
        """What the result may be generalised to."""
        return CLAIMS[self.unit]
