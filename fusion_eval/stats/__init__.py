"""Paired comparison, intervals, corrections and power; thin over scipy.

`interval_of` is the cheap entry for one model's items; `compare_scores` and `compare_metrics` compare methods. Names
load on first use.
"""

from __future__ import annotations

from typing import Any

from fusion_eval.lazy import public_name

_HOMES = {
    "arrays": ("as_clusters", "as_floats"),
    "bootstrap": ("bootstrap_interval", "interval_of_metric"),
    "class_metrics": ("count_metric", "counts_of_confusion", "label_counts", "label_metric", "map_counts"),
    "compare": ("compare_metrics", "compare_scores", "compare_values"),
    "comparison": ("Comparison", "sentence", "verdict_of"),
    "correction": ("correct", "correct_by_family", "smallest_corrected"),
    "crossed": ("crossed_t", "variance_of_runs"),
    "effects": ("cohen_d_paired", "cohen_d_pooled", "discordant", "item_correlation", "tost_p"),
    "intervals": ("Interval", "interval_of", "standard_error", "student_t", "wilson"),
    "item_metric": ("ItemMetric", "additive_metric", "mean_metric"),
    "outcome": ("Outcome",),
    "paired": ("clustered_t", "mcnemar_p", "run_test", "sign_flip_p"),
    "power": ("items_needed", "items_needed_sampled", "minimal_detectable_effect", "power_of", "smallest_p"),
    "probability_metrics": ("auroc", "binary_auroc", "calibration_error"),
    "regression_metrics": ("perplexity", "regression_metric"),
    "resample": ("crossed_means", "resampled_means", "resampled_metrics"),
    "result": ("ComparisonResult",),
    "scores": ("Scores",),
    "settings": ("Settings",),
    "summary": ("MethodSummary",),
    "tasks": ("TaskComparison", "compare_tasks", "critical_difference", "friedman", "interquartile_mean"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _MODULE_OF, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
