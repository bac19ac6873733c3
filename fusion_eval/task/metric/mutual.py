"""Mutual information adjusted for chance, with the expectation in double precision and without a loop over its terms.

torchmetrics sums the expectation term by term in single precision, which is slow and, for many items, off by more than
the adjustment.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor
from torchmetrics.clustering import AdjustedMutualInfoScore
from torchmetrics.utilities import dim_zero_cat

Floats = NDArray[np.float64]


class ExactAdjustedMutualInfo(AdjustedMutualInfoScore):
    """(MI - E[MI]) / (mean entropy - E[MI]) (Vinh, Epps and Bailey 2010), E over tables with the same margins."""

    def compute(self) -> Tensor:
        """The score; 1 where both groupings are one group, or each item is its own."""
        labels = [dim_zero_cat(part).cpu().numpy() for part in (self.preds, self.target)]
        rows, columns = (np.unique(part, return_inverse=True)[1].reshape(-1) for part in labels)
        shape = (int(rows.max()) + 1, int(columns.max()) + 1)
        table = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape).astype(float)
        a, b = table.sum(axis=1), table.sum(axis=0)
        mutual = _entropy(a) + _entropy(b) - _entropy(table.reshape(-1))
        expected = expected_mutual_information(a, b)
        return torch.tensor(adjusted(mutual, (_entropy(a) + _entropy(b)) / 2, expected), dtype=torch.float64)


def adjusted(mutual: float, mean_entropy: float, expected: float) -> float:
    """The adjusted score of one table."""
    whole = mean_entropy - expected
    return 1.0 if abs(whole) < 1e-12 else (mutual - expected) / whole


def _entropy(counts: Floats) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def expected_mutual_information(a: Floats, b: Floats, n: float | None = None) -> float:
    """The mean mutual information of tables with row sums a (R,) and column sums b (C,) (Vinh et al. 2010, eq. 24).

    Sums that are no whole numbers, or do not add up to n, are taken by the same formula.
    """
    n = float(a.sum()) if n is None else n
    total, b = 0.0, b[b > 0]
    for each in a[a > 0]:
        count = np.arange(1.0, np.floor(min(each, b.max())) + 1)[None]
        inside = (count <= b[:, None]) & (n - each - b[:, None] + count > -1)
        rest = np.where(inside, n - each - b[:, None] + count, 0.0)
        left = np.where(inside, b[:, None] - count, 0.0)
        chance = (gammaln(each + 1) + gammaln(b + 1)[:, None] + gammaln(n - each + 1) + gammaln(n - b + 1)[:, None]) - (
            gammaln(n + 1) + gammaln(count + 1) + gammaln(each - count + 1) + gammaln(left + 1) + gammaln(rest + 1)
        )
        terms = count / n * np.log(n * count / (each * b[:, None])) * np.exp(np.where(inside, chance, -np.inf))
        total += float(terms.sum())
    return total
