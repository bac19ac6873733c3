"""Tasks of the user's: the specification's samples run, BigCode's import lines work, folders are searched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError, SandboxError
from fusion_eval.harness.code import Task, code_eval, evaluate, judging, load_metric, stand_ins, tasks_in
from fusion_eval.sandbox import Sandbox

CUSTOM = '''
"""A benchmark of mine."""
from evaluate import load
from bigcode_eval.base import Task

DOCS = [{"prompt": "def double(x):\\n", "canonical_solution": "    return 2 * x", "test": "assert double(2) == 4",
         "entry_point": "double"}]


class MyCustomTask(Task):
    DATASET_PATH = "username/dataset-name"
    DATASET_NAME = None

    def __init__(self):
        super().__init__(stop_words=["\\nclass", "\\nprint"], requires_execution=True)

    def get_dataset(self):
        return DOCS

    def get_prompt(self, doc):
        return doc["prompt"]

    def get_reference(self, doc):
        return doc["test"]

    def postprocess_generation(self, generation, idx):
        for stop_word in self.stop_words:
            if stop_word in generation:
                generation = generation[: generation.index(stop_word)]
        return generation

    def process_results(self, generations, references):
        code_metric = load("code_eval")
        results, _ = code_metric.compute(references=references, predictions=generations, k=[1, 10, 100])
        return results


class BLEUTask(MyCustomTask):
    def __init__(self):
        Task.__init__(self, stop_words=["\\n\\n"], requires_execution=False)

    def get_reference(self, doc):
        return doc["canonical_solution"]

    def process_results(self, generations, references):
        from evaluate import load

        bleu = load("bleu")
        predictions = [g[0] for g in generations]
        results = bleu.compute(predictions=predictions, references=[[r] for r in references])
        return {"bleu": results["bleu"]}
'''

FACTORY = """
from bigcode_eval.base import Task

def create_task_class(language):
    class LanguageTask(Task):
        DATASET_PATH = "username/dataset"
        DATASET_NAME = language
        def get_dataset(self): return []
        def get_prompt(self, doc): return ""
        def get_reference(self, doc): return ""
        def postprocess_generation(self, generation, idx): return generation
        def process_results(self, generations, references): return {}
    return LanguageTask

def create_all_tasks():
    return {f"my-task-{lang}": create_task_class(lang) for lang in ["python", "java"]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CUSTOM)
    (tmp_path / "factory.py").write_text(FACTORY)
    (tmp_path / "_helper.py").write_text("raise RuntimeError")
    return tmp_path


def test_tasks_are_found_without_registration(folder: Path) -> None:
    found = tasks_in(folder)
    assert set(found) == {"my-custom-task", "b-l-e-u-task", "my-task-python", "my-task-java"}
    assert found["my-task-java"]().DATASET_NAME == "java"
    assert set(tasks_in(folder / "mine.py")) == {"my-custom-task", "b-l-e-u-task"}


def test_a_task_of_bigcode_runs_in_the_sandbox(folder: Path, box: Sandbox) -> None:
    task = tasks_in(folder)["my-custom-task"]()
    raw = "def double(x):\n    return 2 * x\n\nclass Bar:"
    processed = task.postprocess_generation(raw, 0)
    assert "class Bar" not in processed
    found = evaluate(task, [[processed, "def double(x):\n    return x"]], box)
    assert found.metrics == {"pass@1": 0.5}
    assert found.statuses == {"passed": 1, "failed": 1}
    assert found.intervals["pass@1"].value == 0.5
    with pytest.raises(SandboxError):
        evaluate(task, [[processed]])


def test_a_task_without_execution_needs_no_sandbox(folder: Path) -> None:
    task = tasks_in(folder)["b-l-e-u-task"]()
    assert evaluate(task, [["    return 2 * x + 1"]]).metrics["bleu"] > 0.5


def test_the_stand_ins_leave_nothing_behind(folder: Path) -> None:
    before = {name: sys.modules.get(name) for name in ("evaluate", "bigcode_eval")}
    tasks_in(folder)
    with stand_ins():
        assert sys.modules["evaluate"].load is load_metric
    assert {name: sys.modules.get(name) for name in before} == before


def test_files_that_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a Python file"):
        tasks_in(tmp_path)
    (tmp_path / "bad.py").write_text("import no_such_module_at_all")
    with pytest.raises(ConfigError, match=r"bad\.py"):
        tasks_in(tmp_path)


def test_details_have_the_form_of_the_metric(box: Sandbox) -> None:
    with judging(box):
        scores, details = code_eval(
            predictions=[["def f(): return 1", "def f(): return 2", "def f():\n while 1: pass"]],
            references=["assert f() == 1"], k=[1, 2], timeout=0.5,
        )  # fmt: skip
    assert scores == {"pass@1": pytest.approx(1 / 3), "pass@2": pytest.approx(2 / 3)}
    assert [row[1]["result"] for row in details[0]] == ["passed", "failed: AssertionError: ", "timed out"]
    assert details[0][0] == (0, {"task_id": 0, "passed": True, "result": "passed", "completion_id": 0})


def test_a_metric_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evaluate", None)
    with pytest.raises(ConfigError, match="code_eval"):
        load_metric("no_such_metric")


def test_stop_words_by_the_inherited_helper() -> None:
    assert Task._stop_at_stop_token("a\nb\nc", ["\nc", "\nb"]) == "a"
