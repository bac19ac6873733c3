"""program=tasks from the command line and from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusion_eval import usage
from fusion_eval.errors import ConfigError
from fusion_eval.program.tasks_program import TasksProgram

ASK = """
import atexit, sys
HEAVY = ('torch', 'lightning', 'transformers', 'datasets')
atexit.register(lambda: print('LOADED', [m for m in HEAVY if m in sys.modules]))
sys.argv = ['fusion_eval', *{argv}]
from fusion_eval.cli import main
main()
"""
TASK = "task: mine\ndataset_path: a/b\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: !function utils.target\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.yaml").write_text(TASK)
    (tmp_path / "tasks" / "utils.py").write_text("raise RuntimeError('nobody may run this')\ndef target(doc): ...\n")
    return tmp_path


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    code = ASK.format(argv=list(argv))
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=dict(os.environ)
    )


def test_a_list_needs_no_models_and_no_torch(folder: Path) -> None:
    done = run(folder, "program=tasks", "action=list", "include_path=tasks", "tasks=mine", "output=out")
    assert done.returncode == 0, done.stderr
    assert "mine  task  generate_until  a/b   tasks/mine.yaml" in done.stdout
    assert "LOADED []" in done.stdout
    assert json.loads((folder / "out" / "findings.json").read_text())[0]["name"] == "mine"


def test_a_check_ends_with_status_1_where_there_are_faults(folder: Path) -> None:
    done = run(folder, "program=tasks", "action=check", "include_path=tasks", "tasks=mine")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "tasks" / "mine.yaml").write_text(TASK + "doc_to_txt: x\n")
    done = run(folder, "program=tasks", "action=check", "include_path=tasks", "tasks=mine")
    assert done.returncode == 1
    assert "Did you mean 'doc_to_text'" in done.stdout
    assert "1 of 1 have faults" in done.stderr


def test_what_is_left_out_is_taken_from_the_task_pool() -> None:
    pool = {"tasks": ["a"], "tasks_from": "lm_eval", "data_root": None, "model_name": "???"}
    program = TasksProgram(config={"taskpool": pool}, data_root="here")
    assert (program.tasks, program.tasks_from, program.data_root, program.model) == (["a"], ["lm_eval"], "here", [])
    assert TasksProgram(tasks="b,c", config={"taskpool": pool}).tasks == ["b", "c"]
    assert TasksProgram(config={"taskpool": {"tasks": ["a"]}}).tasks == []


def test_wrong_actions_are_told() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'list'"):
        TasksProgram("lst")
    with pytest.raises(ConfigError, match="none is named"):
        TasksProgram("show").run()


def test_keys_of_the_program_need_no_prefix() -> None:
    argv = ["program=tasks", "action=show", "limit=3", "taskpool=digits", "+doc=1", "program.doc=2", "-m"]
    full = usage.with_full_keys(argv, ["limit", "taskpool"])
    assert full == ["program=tasks", "program.action=show", *argv[2:]]
    assert usage.with_full_keys(["action=show"], []) == ["action=show"]
