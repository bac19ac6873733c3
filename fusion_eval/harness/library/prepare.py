"""Functions of the library's task files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusion_eval.harness.instruction import follows, loosened

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


def ifeval(doc: Document, results: Sequence[str]) -> dict[str, Any]:
    """Which instructions the response follows, as it stands and loosened."""
    asked = list(zip(doc["instruction_id_list"], doc["kwargs"], strict=True))
    strict = [follows(results[0], kind, given) for kind, given in asked]
    variants = loosened(results[0])
    loose = [any(follows(variant, kind, given) for variant in variants) for kind, given in asked]
    return {
        "prompt_level_strict_acc": all(strict), "inst_level_strict_acc": strict,
        "prompt_level_loose_acc": all(loose), "inst_level_loose_acc": loose,
    }  # fmt: skip


def share_of_all(items: Sequence[Sequence[bool]]) -> float:
    """The share of true values in all lists together."""
    values = [value for item in items for value in item]
    return sum(values) / len(values)
