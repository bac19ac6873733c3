"""Results as pandas frames and xarray datasets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fusion_eval.errors import missing_dependency
from fusion_eval.stats.comparison import BETTER, INCONCLUSIVE, WORSE, Comparison

if TYPE_CHECKING:
    import pandas
    import xarray

    from fusion_eval.stats.content import ResultContent


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise missing_dependency("pandas", "stats", "a table of results") from error
    return pandas


def comparison_frame(result: ResultContent) -> pandas.DataFrame:
    """One row per pair and metric, the columns in the order of `Comparison`'s fields; notes joined to text."""
    rows = [{**found.as_dict(), "notes": "; ".join(found.notes)} for found in result.comparisons]
    return _pandas().DataFrame(rows)


def summary_rows(result: ResultContent, reference: str) -> list[dict[str, Any]]:
    """The summaries with `significant_vs_ref` ("*" for a significant difference) and `verdict_vs_ref`."""
    rows = []
    for row in result.summaries:
        found = result.comparison(row.metric, row.method, reference) if row.method != reference else None
        mark = "*" if found is not None and found.significant else ""
        verdict = "" if found is None else verdict_for(found, row.method)
        rest = asdict(row)
        first = {name: rest.pop(name) for name in ("method", "metric", "mean", "ci_low", "ci_high")}
        rest["notes"] = "; ".join(rest["notes"])
        rows.append({**first, "significant_vs_ref": mark, "verdict_vs_ref": verdict, **rest})
    return rows


def verdict_for(found: Comparison, method: str) -> str:
    """The verdict seen from either method of the pair."""
    turned = {BETTER: WORSE, WORSE: BETTER}
    return found.verdict if found.method_a == method else turned.get(found.verdict, found.verdict) or INCONCLUSIVE


def summary_frame(result: ResultContent, reference: str) -> pandas.DataFrame:
    """`summary_rows` as a frame."""
    return _pandas().DataFrame(summary_rows(result, reference))


def dataset_of(result: ResultContent) -> xarray.Dataset:
    """A dataset with dims method, seed and item; attributes say how the comparison was made."""
    try:
        import xarray
    except ImportError as error:
        raise missing_dependency("xarray", "stats", "a dataset of results") from error
    variables: dict[str, Any] = {}
    for scores in result.scores:
        direction = {"higher_is_better": int(scores.higher_is_better), "n_items": scores.n_items}
        variables[scores.metric] = (("method", "seed"), scores.values, direction)
        if scores.items is not None:
            variables[f"{scores.metric}_item"] = (("method", "seed", "item"), scores.items, direction)
    coordinates: dict[str, Any] = {"method": list(result.methods), "seed": list(result.scores[0].seeds)}
    if result.clusters is not None:
        coordinates["cluster"] = ("item", result.clusters)
    settings = {name: str(value) for name, value in asdict(result.settings).items()}
    return xarray.Dataset(variables, coordinates, {**settings, "warnings": list(result.warnings)})
