"""Ways to make rows for tokens that a model lacks, as mergekit-tokensurgeon names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BY_DONOR: Final = ("omp", "common_interpolation")
"""Ways that repeat how another model makes its row of the token of its own rows."""
METHODS: Final = (*BY_DONOR, "subword", "mean", "zero", "randn", "john_hewitt")
SCHEMES: Final = ("distance_proportional", "barycentric", "least_squares")
PIECES: Final = ("mean", "sum", "weighted_mean", "first_last")


@dataclass(frozen=True, slots=True)
class Approximation:
    """How rows of new tokens are made.

    Args:
        method: one of `METHODS`.
        count: of how many rows at most, for `BY_DONOR`.
        scheme: how nearest rows are weighed, for `common_interpolation`.
        cosine: whether near means a like direction rather than a small distance.
        pieces: how the rows of a token's pieces are combined, for `subword`.
    """

    method: str = "omp"
    count: int = 64
    scheme: str = "distance_proportional"
    cosine: bool = False
    pieces: str = "mean"
