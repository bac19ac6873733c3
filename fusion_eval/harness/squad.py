"""Scores of extractive question answering (Rajpurkar et al., 2016 and 2018): exact match and token F1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Scores = dict[str, float]


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation and English articles, single spaces."""
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def get_tokens(text: str) -> list[str]:
    """Words of the normalised text."""
    return normalize_answer(text).split() if text else []


def compute_exact(gold: str, predicted: str) -> int:
    """1 where both normalise to the same text."""
    return int(normalize_answer(gold) == normalize_answer(predicted))


def compute_f1(gold: str, predicted: str) -> float:
    """F1 of the bags of words; 1 where both are empty."""
    left, right = get_tokens(gold), get_tokens(predicted)
    if not left or not right:
        return float(left == right)
    same = sum((Counter(left) & Counter(right)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(right), same / len(left)
    return 2 * precision * recall / (precision + recall)


def squad(predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]) -> Scores:
    """Percentages `exact_match` and `f1`: per question the best over its answers."""
    texts = {p["id"]: p["prediction_text"] for p in predictions}
    exact, f1 = 0.0, 0.0
    for reference in references:
        golds, found = reference["answers"]["text"], texts[reference["id"]]
        exact += max(compute_exact(gold, found) for gold in golds)
        f1 += max(compute_f1(gold, found) for gold in golds)
    return {"exact_match": 100.0 * exact / len(references), "f1": 100.0 * f1 / len(references)}


def squad_v2(
    predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]], no_answer_threshold: float = 1.0
) -> Scores:
    """Percentages with questions that have no answer: `exact`, `f1`, parts by answerability, best thresholds."""
    answered = {r["id"]: [t for t in r["answers"]["text"] if normalize_answer(t)] for r in references}
    texts = {p["id"]: p["prediction_text"] for p in predictions}
    doubts = {p["id"]: p["no_answer_probability"] for p in predictions}
    exact, f1 = {}, {}
    for name, golds in answered.items():
        exact[name] = float(max(compute_exact(gold, texts[name]) for gold in golds or [""]))
        f1[name] = max(compute_f1(gold, texts[name]) for gold in golds or [""])
    kept = {}
    for label, raw in (("exact", exact), ("f1", f1)):
        kept[label] = {n: float(not answered[n]) if doubts[n] > no_answer_threshold else raw[n] for n in raw}
    found = {label: _percent(values, list(values)) for label, values in kept.items()}
    found["total"] = len(answered)
    for part, names in (
        ("HasAns", [n for n in answered if answered[n]]), ("NoAns", [n for n in answered if not answered[n]]),
    ):  # fmt: skip
        if names:
            found.update({f"{part}_{label}": _percent(values, names) for label, values in kept.items()})
            found[f"{part}_total"] = len(names)
    for label, raw in (("exact", exact), ("f1", f1)):
        found[f"best_{label}"], found[f"best_{label}_thresh"] = _best(texts, raw, doubts, answered)
    return found


def _percent(values: Mapping[str, float], names: Sequence[str]) -> float:
    return 100.0 * sum(values[name] for name in names) / len(names)


def _best(
    texts: Mapping[str, str], raw: Mapping[str, float], doubts: Mapping[str, float], answered: Mapping[str, list[str]]
) -> tuple[float, float]:
    """The best percentage over all thresholds of doubt, and the threshold."""
    score = float(sum(not golds for golds in answered.values()))
    best, threshold = score, 0.0
    for name in sorted(doubts, key=lambda n: doubts[n]):
        if answered[name]:
            score += raw[name]
        elif texts[name]:
            score -= 1
        if score > best:
            best, threshold = score, doubts[name]
    return 100.0 * best / len(answered), threshold
