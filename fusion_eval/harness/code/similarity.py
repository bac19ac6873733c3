"""Scores that compare texts: BLEU as sacrebleu and as `evaluate` compute it, exact match."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fusion_eval.errors import DataError, Fault, missing_dependency


def exact_match(candidates: Sequence[str], references: Sequence[str]) -> float:
    """The share of candidates that equal their reference, blanks at both ends aside."""
    _require(candidates, references)
    pairs = zip(candidates, references, strict=True)
    return sum(found.strip() == wanted.strip() for found, wanted in pairs) / len(references)


def sacrebleu_score(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU with sacrebleu's defaults, 0 to 100; raises MissingDependencyError."""
    _require(candidates, references)
    try:
        import sacrebleu
    except ImportError:
        raise missing_dependency("sacrebleu", "language", "BLEU") from None
    width = max(len(row) for row in references)
    streams: Any = [[row[i] if i < len(row) else None for row in references] for i in range(width)]
    return float(sacrebleu.corpus_bleu(list(candidates), streams).score)


def evaluate_bleu(
    candidates: Sequence[str], references: Sequence[Sequence[str]], max_order: int = 4, smooth: bool = False
) -> dict[str, float | list[float]]:
    """BLEU as the `evaluate` library's metric of that name: corpus counts over 13a tokens, 0 to 1.

    Papineni et al. 2002; with `smooth`, one is added to matches and totals (Lin and Och 2004).
    """
    _require(candidates, references)
    tokenize = tokenizer_13a()
    found = [tokenize(text) for text in candidates]
    wanted = [[tokenize(text) for text in row] for row in references]
    length, reference_length = sum(map(len, found)), sum(min(map(len, row)) for row in wanted)
    precisions = [_precision(found, wanted, order, smooth) for order in range(1, max_order + 1)]
    mean = math.exp(math.fsum(map(math.log, precisions)) / max_order) if min(precisions) > 0 else 0.0
    ratio = length / reference_length if reference_length else 0.0
    penalty = 1.0 if ratio > 1 else math.exp(1 - 1 / ratio) if ratio else 0.0
    return {"bleu": mean * penalty, "precisions": precisions, "brevity_penalty": penalty, "length_ratio": ratio}


def _precision(found: list[list[str]], wanted: list[list[list[str]]], order: int, smooth: bool) -> float:
    matches = total = 0
    for tokens, rows in zip(found, wanted, strict=True):
        best: Counter[tuple[str, ...]] = Counter()
        for row in rows:
            best |= grams(row, order)
        matches += (grams(tokens, order) & best).total()
        total += max(0, len(tokens) - order + 1)
    if smooth:
        return (matches + 1.0) / (total + 1.0)
    return matches / total if total else 0.0


def grams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    """How often each run of `order` tokens occurs."""
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))


def tokenizer_13a() -> Callable[[str], list[str]]:
    """Splits text as mteval-v13a does; raises MissingDependencyError without sacrebleu."""
    try:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    except ImportError:
        raise missing_dependency("sacrebleu", "language", "BLEU") from None
    tokenizer: Any = Tokenizer13a
    split = tokenizer()
    return lambda text: list(split(text).split())


def _require(candidates: Sequence[str], references: Sequence[object]) -> None:
    if len(candidates) != len(references) or not references:
        raise DataError(
            Fault("BLEU", f"{len(candidates)} candidates, {len(references)} references", "as many, not none")
        )
