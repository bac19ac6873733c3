"""BLEU and chrF from summed counts, for many resamples at once; torchmetrics computes one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion_eval.stats.arrays import Floats

_LEAST = 1e-16


def text_formula(metric: Any) -> Callable[[Floats], Floats] | None:
    """The metric of sums of its states (B, m) in the states' order, or None for other metrics."""
    kinds = {kind.__name__ for kind in type(metric).__mro__}
    if "BLEUScore" in kinds:
        return lambda sums: _bleu(sums, metric)
    if "CHRFScore" in kinds:
        return lambda sums: _chrf(sums, metric)
    return None


def _bleu(sums: Floats, metric: Any) -> Floats:
    """Brevity penalty times the geometric mean of the precisions (Papineni et al. 2002)."""
    spans = _columns(metric)
    mine, theirs = (sums[:, spans[name]][:, 0] for name in ("preds_len", "target_len"))
    right, every = sums[:, spans["numerator"]], sums[:, spans["denominator"]]
    exists = right.min(axis=1) > 0
    top, bottom = right[exists], every[exists]
    if metric.smooth:
        top, bottom = top + (np.arange(top.shape[1]) > 0), bottom + (np.arange(top.shape[1]) > 0)
    mean = np.exp((np.log(top / bottom) * np.asarray(metric.weights)).sum(axis=1))
    shorter = np.minimum(1.0, np.exp(1.0 - theirs[exists] / mine[exists]))
    values = np.zeros(len(sums))
    values[exists] = mean * shorter
    return values


def _chrf(sums: Floats, metric: Any) -> Floats:
    """The mean of the n-grams' F scores (Popovic 2015)."""
    spans, scores = _columns(metric), []
    for name in spans:
        kind, _, grams = name.removeprefix("total_").partition("_")
        if kind == "matching":
            hits, mine, theirs = (sums[:, spans[f"total_{k}_{grams}"]][:, 0] for k in ("matching", "preds", "target"))
            precision, recall = (_ratio(hits, count) for count in (mine, theirs))
            square = metric.beta**2
            scores.append((1 + square) * precision * recall / np.maximum(square * precision + recall, _LEAST))
    return np.asarray(np.mean(scores, axis=0))


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def _columns(metric: Any) -> dict[str, slice]:
    """Where each state lies in a row of all states."""
    spans, start = {}, 0
    for name, default in metric._defaults.items():
        spans[name] = slice(start, start + default.numel())
        start += default.numel()
    return spans
