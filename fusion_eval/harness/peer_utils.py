"""Helpers that tasks import from `lm_eval.utils` and `lm_eval.tasks`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusion_eval.harness.scoring import softmax
from fusion_eval.harness.template import regex_replace, render

__all__ = ["regex_replace", "softmax"]


def weighted_f1_score(items: Sequence[tuple[Any, Any]]) -> float:
    """F1 averaged over classes, weighted by how often each is gold."""
    from sklearn.metrics import f1_score

    golds, predictions = zip(*items, strict=True)
    return float(f1_score(golds, predictions, average="weighted"))


def general_detokenize(string: str) -> str:
    """Text without the spaces that a tokenizer put around punctuation."""
    for found, wanted in ((" n't", "n't"), (" )", ")"), ("( ", "("), ('" ', '"'), (' "', '"')):
        string = string.replace(found, wanted)
    return re.sub(r" (['.,])", r"\1", string)


def handle_non_serializable(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, set) else str(value)


def make_table(result_dict: Mapping[str, Any], column: str = "results", sort_results: bool = False) -> str:
    """Results as lines of text."""
    rows = result_dict.get(column, {})
    names = sorted(rows) if sort_results else list(rows)
    return "\n".join(f"{name}: {rows[name]}" for name in names)


def apply_template(template: str, doc: Mapping[str, Any]) -> str:
    """A template filled with a document."""
    return render(template, doc)


def hash_string(string: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(string.encode("utf-8")).hexdigest()


def load_yaml(path: str | Path, **_: Any) -> dict[str, Any]:
    """The values of a task file with its includes; functions stay references."""
    from fusion_eval.harness.yaml_file import YamlReader

    return YamlReader().read(Path(path)).values
