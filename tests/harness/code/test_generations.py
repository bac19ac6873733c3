"""Files of generations: ours resumes and grows, the peers' are read and written, mix-ups are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.code import generations as files
from fusion_eval.harness.code.generations import Sample

PROMPTS = {"A/0": "def a():\n", "A/1": "def b():\n"}


def sample(doc: str, index: int, candidate: str = "x", settings: str = "s") -> Sample:
    return Sample("t", doc, index, candidate, candidate, "stop", settings)


def test_records_survive_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "g.jsonl"
    files.append(path, [sample("A/0", 0, "é\n"), sample("A/0", 1)])
    files.append(path, [sample("A/1", 0)])
    whole = path.read_text()
    path.write_text(whole + '{"task": "t", "doc')
    found = files.read(path, "t", "s")
    assert [(s.doc_id, s.index, s.candidate) for s in found] == [("A/0", 0, "é\n"), ("A/0", 1, "x"), ("A/1", 0, "x")]


def test_runs_resume_and_grow() -> None:
    found = [sample("A/0", 0), sample("A/1", 0)]
    assert files.missing(found, list(PROMPTS), 1) == []
    assert files.missing(found, list(PROMPTS), 2) == [("A/0", 1), ("A/1", 1)]
    assert files.missing([], list(PROMPTS), 1) == [("A/0", 0), ("A/1", 0)]


def test_rows_are_in_the_documents_order_and_complete() -> None:
    found = [
        sample("A/1", 1, "d"),
        sample("A/1", 0, "c"),
        sample("A/0", 0, "a"),
        sample("A/0", 1, "b"),
        sample("A/0", 1, "B"),
    ]
    assert files.in_order(found, list(PROMPTS), 2) == [["a", "B"], ["c", "d"]]
    assert files.in_order(found, ["A/1"], 1) == [["c"]]
    with pytest.raises(DataError, match="not all samples of A/0"):
        files.in_order(found[:2], list(PROMPTS), 2)


@pytest.mark.parametrize(
    ("task", "settings", "message"), [("other", "", "generations of t"), ("t", "z", "other settings")]
)
def test_files_of_another_run_are_refused(tmp_path: Path, task: str, settings: str, message: str) -> None:
    path = tmp_path / "g.jsonl"
    files.append(path, [sample("A/0", 0)])
    with pytest.raises(DataError, match=message):
        files.read(path, task, settings)


def test_damaged_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    path.write_text('{"x": 1}\n')
    with pytest.raises(DataError, match="line 1"):
        files.read(path, "t")


def test_bigcode_files(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    files.write_bigcode(path, [["a", "b"], ["c"]])
    assert files.read_bigcode(path) == [["a", "b"], ["c"]]
    path.write_text(json.dumps({"humaneval": [["a"]]}))
    assert files.read_bigcode(path, "humaneval") == [["a"]]
    with pytest.raises(DataError, match="generations of humaneval"):
        files.read_bigcode(path, "mbpp")
    for text in ("[[1]]", "3", "{"):
        path.write_text(text)
        with pytest.raises(DataError):
            files.read_bigcode(path)


def test_human_eval_files(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    rows = [["def a():\n    pass", "def a(): 1"], ["def b():\n    pass"]]
    files.write_human_eval(path, rows, PROMPTS)
    first = json.loads(path.read_text().splitlines()[0])
    assert first == {"task_id": "A/0", "completion": "    pass"}
    assert files.read_human_eval(path, PROMPTS) == rows
    with pytest.raises(DataError, match="unknown problems"):
        files.read_human_eval(path, {"A/0": ""})
    with pytest.raises(DataError, match="no sample of A/2"):
        files.read_human_eval(path, {**PROMPTS, "A/2": ""})
