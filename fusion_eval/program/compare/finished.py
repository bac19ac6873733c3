"""Models of finished runs: ours, from reports and per-item files, and lm-evaluation-harness's, from sample files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.program.compare.samples import sample_files, sample_models
from fusion_eval.report.items import items_path, read_items
from fusion_eval.report.report import read_report
from fusion_eval.report.values import ModelResult, TaskResult

ITEMS = "items"


def read_runs(folders: Sequence[Path]) -> list[ModelResult]:
    """The models of all runs with their items; merges that several runs have are called `folder/name`.

    A folder without a report may hold `samples_*.jsonl` files of lm-evaluation-harness.

    A base or an expert that several runs evaluated is taken once.

    Raises:
        ConfigError: folders without a report, with an unfinished one, or without per-item files.
    """
    faults: list[Fault] = []
    found = [(folder, model) for folder in folders for model in _models(folder, faults)]
    if faults:
        raise ConfigError(*faults)
    names = [model.name for _, model in found]
    sampled = [pair for pair in found if not (pair[0] / "report.json").is_file()]
    kept: dict[str, ModelResult] = {}
    for folder, model in found:
        shared = names.count(model.name) > 1 and (model.role == "merged" or (folder, model) in sampled)
        name = f"{folder.name}/{model.name}" if shared else model.name
        kept.setdefault(name, replace(model, name=name))
    return list(kept.values())


def _models(folder: Path, faults: list[Fault]) -> list[ModelResult]:
    if not (folder / "report.json").is_file() and (files := sample_files(folder)):
        return sample_models(files, faults)
    try:
        report = read_report(folder)
    except FusionEvalError as error:
        faults.extend(error.faults)
        return []
    if report.status != "complete":
        faults.append(Fault(f"program.runs, {folder}", f"a run that is {report.status}", "a complete one"))
        return []
    return [
        replace(model, tasks=tuple(_with_items(folder, model.name, task, faults) for task in model.tasks))
        for model in report.models
    ]


def _with_items(folder: Path, model: str, task: TaskResult, faults: list[Fault]) -> TaskResult:
    path = items_path(folder / ITEMS, model, task.name)
    if not path.is_file():
        do = "Run again with program.keep_items=true."
        faults.append(Fault(str(path), "no per-item file", "one per model and task", do))
        return task
    return replace(task, items=read_items(folder / ITEMS, model, task.name))
