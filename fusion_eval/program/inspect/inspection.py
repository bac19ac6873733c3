"""What an inspection found, and its forms: plain data, cells of tables, sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from fusion_eval.merge.diagnosis_advice import Finding
from fusion_eval.merge.diagnosis_matrix import MatrixTraits
from fusion_eval.merge.diagnosis_pool import Diagnosis, Part, nan_mean, off_diagonal

SCHEMA: Final = 1
_PER_EXPERT: Final = ("stable", "stable_low", "effective", "rank", "first")

Cells = tuple[str, list[str], list[list[str]]]
"""A table: its title, header and rows."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A pool looked at before it is merged.

    Args:
        diagnosis: the numbers.
        findings: what they mean.
        misaligned: why the models cannot be merged as they are; then only the parameters that all share were compared.
        differences: of configs and vocabularies beside the weights.
    """

    diagnosis: Diagnosis
    findings: tuple[Finding, ...]
    misaligned: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()

    @property
    def vectors(self) -> str:
        """What is compared."""
        return "task vectors" if self.diagnosis.has_base else "weights, since there is no base"

    def sentences(self) -> list[str]:
        """Everything that a reader should know, in words."""
        return [
            *(f"cannot be merged as it is: {text}" for text in self.misaligned),
            *(f"difference: {text}" for text in self.differences),
            *(spoken(finding) for finding in self.findings),
        ]

    def as_dict(self) -> dict[str, Any]:
        """What `inspect.json` holds (schema 1); numbers that are undefined are null."""
        found = self.diagnosis
        plain = {
            "schema": SCHEMA,
            "vectors": self.vectors,
            "experts": list(found.experts),
            "kinship": found.kinship(),
            "top_share": found.top,
            "first_share": found.first_share(),
            "equal": [list(pair) for pair in found.equal],
            "not_finite": {name: list(models) for name, models in found.broken.items()},
            "integers": list(found.integers),
            "whole": _part(found.whole()),
            "layers": {part.name: _part(part) for part in found.layers()},
            "kinds": {part.name: _part(part) for part in found.kinds()},
            "tensors": {
                tensor.name: {
                    "shape": list(tensor.shape),
                    "top_share": tensor.top,
                    "norms": tensor.sums.norms(),
                    "relative_norms": tensor.sums.relative_norms(),
                    "matrix": None if tensor.matrix is None else _matrix(tensor.matrix),
                }
                for tensor in found.tensors
            },
            "findings": [asdict(finding) for finding in self.findings],
            "misaligned": list(self.misaligned),
            "differences": list(self.differences),
        }
        cleaned: dict[str, Any] = without_nan(plain)
        return cleaned

    def tables(self, most: int | None = None) -> list[Cells]:
        """Experts, pairs and layers; of more than `most` layers only the first and last."""
        return (
            [self._experts(), self._pairs(), self._layers(most)]
            if len(self.diagnosis.experts) > 1
            else [
                self._experts(),
                self._layers(most),
            ]
        )

    def _experts(self) -> Cells:
        found, sums = self.diagnosis, self.diagnosis.whole().sums
        origin = "base" if found.has_base else found.experts[0]
        header = ["expert", "norm", "norm / base", f"cosine with {origin}", "in top 20 %", "changed"]
        rows = [
            [name, shown(norm), shown(relative, 4), shown(kin, 4), percent(top), percent(changed)]
            for name, norm, relative, kin, top, changed in zip(
                found.experts,
                sums.norms(),
                sums.relative_norms(),
                found.kinship(),
                found.top,
                sums.changed(),
                strict=True,
            )
        ]
        whole = f"{len(found.tensors)} tensors, {sums.numel:,} entries"
        return f"{self.vectors}: {whole}", header, rows

    def _pairs(self) -> Cells:
        """Cosines above the diagonal, shares of opposite signs below it."""
        found, sums = self.diagnosis, self.diagnosis.whole().sums
        cosines, conflicts = sums.cosines(), sums.conflicts()
        rows = []
        for i, name in enumerate(found.experts):
            above = [shown(cosine) if j > i else "" for j, cosine in enumerate(cosines[i])]
            below = [percent(conflict) if j < i else "" for j, conflict in enumerate(conflicts[i])]
            rows.append([name, *(a or b for a, b in zip(above, below, strict=True))])
        title = "cosines above the diagonal, shares of opposite signs below (50 % by chance)"
        return title, ["", *found.experts], rows

    def _layers(self, most: int | None) -> Cells:
        parts = self.diagnosis.layers()
        title = "by layer, means over experts and pairs"
        if most is not None and len(parts) > most:
            title += f"; {len(parts) - most} of {len(parts)} layers are in inspect.md only"
            parts = (*parts[: most // 2], *parts[len(parts) - (most - most // 2) :])
        header = ["layer", "entries", "norm / base", "cosine", "opposite", "cancelled"]
        header += ["stable rank", "effective rank", "of", "overlap", "by chance"]
        return title, header, [_layer_cells(part) for part in (*parts, self.diagnosis.whole())]


def spoken(finding: Finding) -> str:
    """A finding as a sentence, with what to write on the command line."""
    text = f"{finding.kind}: {finding.text}"
    return f"{text} [{finding.overrides}]" if finding.overrides else text


def shown(number: float, digits: int = 3) -> str:
    """A number, or a dash where it is undefined."""
    return "-" if math.isnan(number) else f"{number:.{digits}f}"


def percent(share: float) -> str:
    """A share in percent, or a dash where it is undefined."""
    return "-" if math.isnan(share) else f"{share:.1%}".replace("%", " %")


def without_nan(value: Any) -> Any:
    """Plain data for JSON: arrays as lists, NaN as null."""
    if isinstance(value, np.ndarray):
        return without_nan(value.tolist())
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def _layer_cells(part: Part) -> list[str]:
    sums = part.sums
    ranks = [shown(part.mean(trait), 1) for trait in ("stable", "effective")]
    sides = nan_mean([float(matrix.side) for matrix in part.matrices])
    subspaces = [shown(part.mean("overlap")), shown(nan_mean([matrix.chance for matrix in part.matrices]))]
    return [
        part.name,
        f"{sums.numel:,}",
        shown(nan_mean(sums.relative_norms()), 4),
        shown(off_diagonal(sums.cosines())),
        percent(off_diagonal(sums.conflicts())),
        percent(sums.cancelled()),
        *ranks,
        shown(sides, 0),
        *subspaces,
    ]


def _part(part: Part) -> dict[str, Any]:
    sums = part.sums
    return {
        "entries": sums.numel,
        "seen": sums.seen,
        "base_norm": sums.base_norm(),
        "norms": sums.norms(),
        "relative_norms": sums.relative_norms(),
        "cosines": sums.cosines(),
        "sign_conflicts": sums.conflicts(),
        "changed": sums.changed(),
        "cancelled": sums.cancelled(),
        "growth": sums.growth(),
        **{f"mean_{trait}": part.mean(trait) for trait in ("stable", "effective", "rank", "first", "overlap")},
    }


def _matrix(matrix: MatrixTraits) -> dict[str, Any]:
    traits: Sequence[str] = (*_PER_EXPERT, "overlap", "chance", "side", "directions", "exact")
    return {trait: getattr(matrix, trait) for trait in traits}
