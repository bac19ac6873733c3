"""Functions of the library's task files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Document = Mapping[str, Any]


def hellaswag(dataset: Any) -> Any:
    """Documents with `query`, `choices` and `gold`, freed of the markup of their source."""

    def prepared(doc: Document) -> dict[str, Any]:
        query = f"{doc['activity_label']}: {doc['ctx_a']} {doc['ctx_b'].capitalize()}"
        return {
            "query": without_markup(query),
            "choices": [without_markup(ending) for ending in doc["endings"]],
            "gold": int(doc["label"]),
        }

    return dataset.map(prepared)


def without_markup(text: str) -> str:
    """Text without the bracketed titles of WikiHow, spaces single."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def winogrande_gold(doc: Document) -> int:
    """The index of the right option."""
    return int(doc["answer"]) - 1


def winogrande_contexts(doc: Document) -> list[str]:
    """The sentence up to the gap, filled with each option."""
    before = doc["sentence"].partition("_")[0]
    return [before + doc["option1"], before + doc["option2"]]


def winogrande_rest(doc: Document) -> str:
    """The sentence after the gap."""
    return str(doc["sentence"].partition("_")[2].strip())


def truthfulqa_mc2(doc: Document, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """The share of probability that the true answers have."""
    shares = np.exp([score for score, _ in results])
    labels = np.array(doc["mc2_targets"]["labels"])
    return {"acc": float(shares[labels == 1].sum() / shares.sum())}
