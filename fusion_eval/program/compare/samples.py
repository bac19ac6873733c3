"""Models of lm-evaluation-harness runs, from the sample files that it writes beside its results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusion_eval.errors import Fault, FusionEvalError
from fusion_eval.harness.sample_file import metric_columns, read_samples
from fusion_eval.report.values import LOWER_IS_BETTER, ModelResult, TaskResult, Value
from fusion_eval.stats.intervals import interval_of

_NAME = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d{2}-\d{2}T[\d.:-]+))?\.jsonl")
_SAME = 1e-4


def sample_files(place: Path) -> list[Path]:
    """The sample files that a path names, or that lie in a folder and below; of a task's several the latest."""
    if place.is_file():
        return [place] if _NAME.fullmatch(place.name) else []
    latest: dict[tuple[Path, str], Path] = {}
    for path in sorted(place.rglob("samples_*.jsonl")):
        if named := _NAME.fullmatch(path.name):
            latest[path.parent, named["task"]] = path
    return list(latest.values())


def sample_models(files: Sequence[Path], faults: list[Fault]) -> list[ModelResult]:
    """One model per folder of sample files, called as the folder is; what cannot be read goes into `faults`."""
    folders = dict.fromkeys(path.parent for path in files)
    found = []
    for folder in folders:
        results = _results(folder)
        tasks = []
        for path in (path for path in files if path.parent == folder):
            try:
                tasks.append(_task(path, results))
            except (FusionEvalError, OSError) as error:
                cannot = [Fault(str(path), f"cannot be read ({error})", "a sample file")]
                faults.extend(error.faults if isinstance(error, FusionEvalError) else cannot)
        found.append(ModelResult(folder.resolve().name, "expert", tuple(tasks), {}))
    return found


def _results(folder: Path) -> Mapping[str, Any]:
    """The latest results file of the folder, for values and directions; empty where there is none."""
    for path in sorted(folder.glob("results_*.json"), reverse=True):
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(stored, dict):
            return stored
    return {}


def _task(path: Path, results: Mapping[str, Any]) -> TaskResult:
    named = _NAME.fullmatch(path.name)
    assert named is not None
    task, rows = named["task"], read_samples(path)
    reported = results.get("results", {}).get(task, {})
    directions = results.get("higher_is_better", {}).get(task, {})
    documents = sorted({row["doc_id"] for row in rows})
    hashes = {row["doc_id"]: str(row.get("doc_hash", "")) for row in rows}
    items: dict[str, Any] = {"id": np.array([str(document) for document in documents])}
    if all(hashes.values()):
        items["doc_hash"] = np.array([hashes[document] for document in documents])
    values, notes = {}, []
    for key, column in metric_columns(rows).items():
        name = key.removesuffix(",none")
        if set(column) != set(documents):
            notes.append(f"{name}: left out, since {len(documents) - len(column)} documents have no value")
            continue
        scores = np.array([column[document] for document in documents])
        if not np.isfinite(scores).all():
            notes.append(f"{name}: left out, since some values are not finite")
            continue
        stated = reported.get(key, reported.get(name))
        if isinstance(stated, int | float) and abs(stated - scores.mean()) > _SAME * max(1.0, abs(stated)):
            notes.append(f"{name}: left out, since its value {stated:g} is no mean over documents")
            continue
        higher = directions.get(name.partition(",")[0], name.partition(",")[0] not in LOWER_IS_BETTER)
        values[name], items[name] = _value(scores, higher), scores
    return TaskResult(task, values, len(documents), False, tuple(notes), items)


def _value(scores: Any, higher_is_better: bool) -> Value:
    found = interval_of(scores)
    if not math.isfinite(found.stderr) or not math.isfinite(found.low):
        return Value(found.value, None, found.n_items, higher_is_better)
    return Value(found.value, found.stderr, found.n_items, higher_is_better, (found.low, found.high))
