"""Finished runs of lm-evaluation-harness beside our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusion_eval.errors import ConfigError, DataError
from fusion_eval.program.compare.finished import read_runs
from fusion_eval.program.compare.samples import sample_files
from fusion_eval.report.items import write_items
from fusion_eval.report.report import Report
from fusion_eval.report.values import ModelResult, TaskResult, Value
from fusion_eval.stats.result import ComparisonResult
from tests.program.running import run

N = 40
DATE = "2026-11-29T10-00-00.123456"


def scores(skill: float) -> np.ndarray:
    return (np.random.default_rng(int(100 * skill)).random(N) < skill).astype(float)


def peers_run(folder: Path, skill: float, **changes: Any) -> Path:
    """A folder as lm_eval leaves it: results/<model>/samples_<task>_<date>.jsonl, documents in any order."""
    place = folder / "org__model"
    place.mkdir(parents=True)
    acc = scores(skill)
    lines = []
    for document in np.random.default_rng(0).permutation(N).tolist():
        row = {
            "doc_id": document,
            "doc": {"question": f"question {document}"},
            "target": "A",
            "filter": "none",
            "metrics": ["acc", "f1", "bytes"],
            "doc_hash": f"h{document}",
            "acc": float(acc[document]),
            "f1": [0, 1],
            "bytes": float(document),
        }
        lines.append(json.dumps({**row, **{key: f(document) for key, f in changes.items()}}))
    (place / f"samples_quiz_{DATE}.jsonl").write_text("\n".join(lines) + "\n")
    (place / "samples_quiz_2025-01-01T10-00-00.123456.jsonl").write_text("{}\n")
    results = {
        "results": {"quiz": {"acc,none": float(acc.mean()), "bytes,none": 3.5}},
        "higher_is_better": {"quiz": {"acc": True, "bytes": False}},
    }
    (place / f"results_{DATE}.json").write_text(json.dumps(results))
    return folder


def our_run(folder: Path, skill: float) -> Path:
    acc = scores(skill)
    items = {"id": np.array([str(i) for i in range(N)]), "acc": acc}
    result = ModelResult("merged", "merged", (TaskResult("quiz", {"acc": Value(acc.mean(), n=N)}, N, items=items),), {})
    Report("complete", (result,)).write(folder)
    write_items(folder / "items", result)
    return folder


def test_sample_files_become_models(tmp_path: Path) -> None:
    (found,) = read_runs([peers_run(tmp_path / "peer", 0.8)])
    assert found.name == "org__model"
    (task,) = found.tasks
    assert (task.name, task.n, list(task.metrics)) == ("quiz", N, ["acc"])
    assert task.metrics["acc"].value == pytest.approx(scores(0.8).mean())
    assert task.metrics["acc"].interval is not None
    assert task.items["acc"].tolist() == scores(0.8).tolist()
    assert task.notes == ("bytes: left out, since its value 3.5 is no mean over documents",)


def test_the_latest_of_a_task_s_files_counts(tmp_path: Path) -> None:
    files = sample_files(peers_run(tmp_path, 0.8))
    assert [path.name for path in files] == [f"samples_quiz_{DATE}.jsonl"]
    assert sample_files(files[0]) == files


def test_ours_and_the_peer_s_are_compared(tmp_path: Path) -> None:
    folders = [our_run(tmp_path / "ours", 0.2), peers_run(tmp_path / "one", 0.9), peers_run(tmp_path / "two", 0.8)]
    runs = f"program.runs=[{','.join(map(str, folders))}]"
    small = ("modelpool.tasks=[upright]", "limit=5", "fabric=cpu")
    report = run(tmp_path / "out", "program=compare", runs, *small)
    names = ["merged", "one/org__model", "two/org__model"]
    assert [model.name for model in report.models] == names
    found = ComparisonResult.load(tmp_path / "out" / "comparison" / "quiz.json")
    assert found.settings.reference == "merged"
    assert found.comparison("acc", "one/org__model", "merged").verdict == "better"
    assert found.comparison("acc", "two/org__model", "merged").n_items == N


def test_other_documents_are_refused(tmp_path: Path) -> None:
    folders = [peers_run(tmp_path / "one", 0.9), peers_run(tmp_path / "two", 0.8, doc_hash=lambda i: f"other {i}")]
    runs = f"program.runs=[{','.join(map(str, folders))}]"
    with pytest.raises(DataError, match="other items"):
        run(tmp_path / "out", "program=compare", runs, "modelpool.tasks=[upright]", "limit=5", "fabric=cpu")


def test_files_that_cannot_be_read_are_told_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        place = tmp_path / name
        place.mkdir()
        (place / f"samples_quiz_{DATE}.jsonl").write_text('{"doc_id": 1}\nno json\n')
    with pytest.raises(ConfigError) as error:
        read_runs([tmp_path / "one", tmp_path / "two", tmp_path / "nothing"])
    assert str(error.value).count("is not JSON") == 2
    assert "nothing" in str(error.value)
