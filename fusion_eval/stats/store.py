"""Results on disk: a JSON file that people can read, and item scores in a .npz beside it, each whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fusion_eval.errors import Fault, OutputError, StatisticsError
from fusion_eval.stats.arrays import is_binary
from fusion_eval.stats.comparison import Comparison
from fusion_eval.stats.content import ResultContent
from fusion_eval.stats.scores import Scores
from fusion_eval.stats.settings import Settings
from fusion_eval.stats.summary import MethodSummary

_C = TypeVar("_C", bound=ResultContent)

SCHEMA = 1
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def save_result(result: ResultContent, path: Path) -> Path:
    """Write the result; the arrays first, so that a JSON file never names arrays that are not there."""
    if path.suffix != ".json":
        raise OutputError(Fault(str(path), f"the suffix '{path.suffix}'", "a file name that ends in .json"))
    packed = _packed(result)
    arrays = path.with_suffix(".npz")
    document = {
        "schema": SCHEMA,
        "arrays": {"file": arrays.name, "sha256": hashlib.sha256(packed).hexdigest()},
        "scores": [_scores_document(scores) for scores in result.scores],
        **result.as_dict(),
    }
    text = json.dumps(_plain(document), indent=1, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(arrays, packed)
        _write(path, text.encode())
    except OSError as error:
        raise OutputError(Fault(str(path), f"cannot be written ({error.strerror})", "a writable folder")) from error
    return path


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _packed(result: ResultContent) -> bytes:
    arrays: dict[str, Any] = {}
    for i, scores in enumerate(result.scores):
        arrays[f"values_{i}"] = scores.values
        if scores.items is not None:
            arrays[f"items_{i}"] = scores.items.astype(np.uint8) if is_binary(scores.items) else scores.items
    if result.clusters is not None:
        arrays["clusters"] = result.clusters
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _scores_document(scores: Scores) -> dict[str, Any]:
    return {
        "metric": scores.metric,
        "methods": scores.methods,
        "seeds": scores.seeds,
        "higher_is_better": scores.higher_is_better,
        "n_items": scores.n_items,
    }


def _plain(value: Any) -> Any:
    """The value with mappings, lists and JSON numbers only; NaN and infinities as words, since JSON has none."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def load_result(path: Path, kind: type[_C]) -> _C:
    """The saved result of a kind; metrics that are no mean come back with their values, not their functions.

    Raises:
        StatisticsError: no such file, not such a file, a newer schema, or arrays that do not belong to it.
    """
    document = _read(path)
    arrays = _arrays(path, document)
    try:
        scores = tuple(_scores(entry, i, arrays) for i, entry in enumerate(document["scores"]))
        return kind(
            scores=scores,
            comparisons=tuple(_revived(Comparison, entry) for entry in document["comparisons"]),
            summaries=tuple(_revived(MethodSummary, entry) for entry in document["summaries"]),
            settings=Settings(**document["settings"]),
            clusters=arrays.get("clusters"),
            warnings=tuple(document["warnings"]),
            receipt=document["receipt"],
        )
    except (KeyError, TypeError) as error:
        raise StatisticsError(
            Fault(str(path), f"incomplete ({error})", "a file written by ComparisonResult.save")
        ) from error


def _read(path: Path) -> dict[str, Any]:
    expected = "a file written by ComparisonResult.save"
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise StatisticsError(Fault(str(path), f"cannot be read ({error.strerror})", expected)) from error
    except ValueError as error:
        raise StatisticsError(Fault(str(path), f"not JSON ({error})", expected)) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise StatisticsError(Fault(str(path), f"schema {found}", f"schema {SCHEMA}"))
    return document


def _arrays(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    arrays = path.with_name(document["arrays"]["file"])
    try:
        content = arrays.read_bytes()
    except OSError as error:
        do = "Keep the .json and the .npz file together."
        raise StatisticsError(
            Fault(str(arrays), f"cannot be read ({error.strerror})", "the item scores", do)
        ) from error
    if hashlib.sha256(content).hexdigest() != document["arrays"]["sha256"]:
        raise StatisticsError(Fault(str(arrays), "does not belong to the JSON file", "the arrays saved with it"))
    with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def _scores(entry: Mapping[str, Any], i: int, arrays: Mapping[str, Any]) -> Scores:
    items = arrays.get(f"items_{i}")
    return Scores(
        metric=entry["metric"],
        methods=tuple(entry["methods"]),
        values=arrays[f"values_{i}"],
        items=None if items is None else items.astype(np.float64),
        higher_is_better=entry["higher_is_better"],
        seeds=tuple(entry["seeds"]),
        n_items=entry["n_items"],
    )


def _revived(kind: Any, entry: Mapping[str, Any]) -> Any:
    """A frozen row from its document; the text fields of both kinds never hold 'nan' or 'inf' alone by accident."""
    names = {"metric", "method", "method_a", "method_b"}
    values = {k: v if k in names or not isinstance(v, str) else _SPECIAL.get(v, v) for k, v in entry.items()}
    return kind(**{**values, "notes": tuple(entry["notes"])})
