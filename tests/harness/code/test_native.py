"""The package's tasks on a few real problems: prompts, references that pass, wrong ones that do not, parity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError, DataError, SandboxError
from fusion_eval.harness.code import check_references, evaluate, judging, native_tasks, require_references, select
from fusion_eval.harness.code.execution import ExecutionTask
from fusion_eval.harness.code.humaneval import HumanEval, HumanEvalPlus
from fusion_eval.harness.code.humanevalpack import HumanEvalPack
from fusion_eval.harness.code.pal import Pal, majority
from fusion_eval.sandbox import Sandbox
from fusion_eval.sandbox.languages import missing_tools

QUICK = ("humaneval", "mbpp", "mbpp-sanitized", "humanevalplus", "pal-gsmhard-greedy", "humanevalsynthesize-python",
         "humanevalfixtests-js")  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_references_pass(name: str, code_data: Path, box: Sandbox) -> None:
    task = native_tasks()[name]()
    assert isinstance(task, ExecutionTask)
    found = require_references(task, box)
    assert found.result.metrics.get("pass@1", found.result.metrics.get("accuracy")) == 1.0
    assert found.result.unscored == 0
    assert min(found.cpu.values()) > 0


def test_a_reference_that_fails_is_named(code_data: Path, box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    task = HumanEval()
    monkeypatch.setattr(task, "solution", lambda doc: doc["prompt"] + "    return 'nothing'\n")
    assert len(check_references(task, box).failures) == len(task.documents)
    with pytest.raises(DataError, match="reference of HumanEval/0"):
        require_references(task, box)


@pytest.mark.parametrize("language", ["python", "js", "cpp", "java", "rust", "go"])
def test_bugs_are_found(language: str, code_data: Path, box: Sandbox) -> None:
    task = HumanEvalPack(language, "fixtests")
    found = evaluate(task, [[task.solution(doc), task.buggy(doc)] for doc in task.documents], box)
    if missing_tools(task.rules.language):
        assert found.metrics == {}
        assert "no " in next(iter(found.skipped.values()))
    else:
        assert [[verdict.passed for verdict in row] for row in found.verdicts] == [[True, False]] * len(found.verdicts)


class TestParity:
    """BigCode's own fixtures: two problems, two samples, 0.25, 0.25 and 1.0."""

    @pytest.mark.parametrize("name", ["humaneval", "mbpp"])
    def test_pass_at_1(self, name: str, code_data: Path, box: Sandbox) -> None:
        folder = code_data / "bigcode_fixtures" / "parity"
        generations = json.loads((folder / f"{name}_eval_gens.json").read_text())
        references = json.loads((folder / f"{name}_gen_refs.json").read_text())
        with judging(box):
            assert native_tasks()[name]().process_results(generations, references) == {"pass@1": 0.25}

    def test_accuracy(self, code_data: Path, box: Sandbox) -> None:
        generations = json.loads((code_data / "bigcode_fixtures/parity/pal-gsm8k-greedy_eval_gens.json").read_text())
        found = evaluate(Pal(), generations, box, limit=2)
        assert found.metrics == {"accuracy": 1.0, "num_failed_execution": 0}

    def test_references(self, code_data: Path) -> None:
        task = HumanEval()
        wanted = json.loads((code_data / "bigcode_fixtures/parity/humaneval_gen_refs.json").read_text())
        found = [str(task.get_reference(doc)) for doc in task.get_dataset()[:2]]
        assert [text.split() for text in found] == [text.split() for text in wanted]

    def test_prompt(self, code_data: Path) -> None:
        wanted = json.loads((code_data / "bigcode_fixtures/parity/pal-gsm8k-greedy_prompt.json").read_text())["prompt"]
        assert Pal().get_prompt({"question": "test"}) == wanted


def test_several_samples_and_intervals(code_data: Path, box: Sandbox) -> None:
    task = HumanEval()
    rows = [[task.solution(doc), "nothing", task.solution(doc)] for doc in task.documents]
    found = evaluate(task, rows, box)
    assert found.metrics["pass@1"] == pytest.approx(2 / 3)
    assert found.intervals["pass@1"].value == pytest.approx(2 / 3)
    assert found.values == pytest.approx([2 / 3] * len(rows))
    assert found.problems[0] == "HumanEval/0"
    assert [row[2].cached for row in found.verdicts] == [True] * len(rows)
    assert found.integrity == {"split": 3 * len(rows)}
    assert found.sandbox_level == box.level


def test_windows(code_data: Path, box: Sandbox) -> None:
    task = HumanEval()
    docs = task.documents
    found = evaluate(task, [[task.solution(docs[2])], ["x"]], box, limit=2, start=2)
    assert found.problems == ("HumanEval/2", "HumanEval/32")
    assert found.metrics == {"pass@1": 0.5}
    with pytest.raises(DataError, match="another limit"):
        evaluate(task, [["x"]], box, limit=2)
    with pytest.raises(DataError, match="no candidate"):
        evaluate(task, [["x"], []], box, limit=2)


def test_nothing_runs_without_a_sandbox(code_data: Path) -> None:
    task = HumanEval()
    with pytest.raises(SandboxError, match="allow_code_execution"):
        evaluate(task, [["x"]], limit=1)


def test_programs_of_word_problems(code_data: Path, box: Sandbox) -> None:
    task = Pal(vote=True)
    text = task.get_prompt(task.documents[0]) + "def solution():\n    return 18\n\n\n\nQ: next"
    right = task.postprocess_generation(text, 0)
    assert right == "def solution():\n    return 18\nprint(solution())"
    rows = [[right, right.replace("18", "17"), right], ["x ="] * 3]
    found = evaluate(task, rows, box)
    assert found.metrics == {"accuracy": 0.5, "num_failed_execution": 3}
    assert majority([2.0, None, 1.0, 1.0]) == 1.0
    assert majority([None]) is None


def test_prompts_of_the_pack(code_data: Path) -> None:
    for template in ("continue", "instruct", "octocoder", "codellama", "starchat"):
        task = HumanEvalPack("js", "fixtests", template)
        prompt = task.get_prompt(task.documents[0])
        assert prompt.endswith(task.base(task.documents[0]))
        answer = f"{prompt}\n  return true;\n}}\nmore"
        assert task.postprocess_generation(answer, 0).endswith("return true;\n}")
    chat = HumanEvalPack("python", "synthesize", "chat").get_prompt(HumanEvalPack("python").documents[0])
    assert set(chat) == {"instruction", "context"}
    whole = "Here:\n```js\nconst hasCloseElements = () => 1\n```"
    assert HumanEvalPack("js").postprocess_generation(whole, 0) == "const hasCloseElements = () => 1"
    with pytest.raises(ConfigError, match="Did you mean 'fixtests'"):
        HumanEvalPack("python", "fixtest")
    with pytest.raises(ConfigError, match="descriptions"):
        HumanEvalPack("python", "explainsynthesize").get_prompt(HumanEvalPack("python").documents[1])


def test_names_and_patterns() -> None:
    known = native_tasks()
    assert {"multiple-cpp", "multiple-pl", "humanevalexplainsynthesize-rust", "apps-interview"} <= set(known)
    assert select(["pal-*-greedy", "humaneval"], known) == ["pal-gsm8k-greedy", "pal-gsmhard-greedy", "humaneval"]
    with pytest.raises(ConfigError, match="Did you mean 'humaneval'"):
        select(["humanevl"], known)


def test_missing_fields_and_files_are_named(tmp_path: Path) -> None:
    from fusion_eval.harness.code import data_root

    (tmp_path / "HumanEval.jsonl").write_text('{"task_id": "HumanEval/0", "prompt": "x"}\n')
    with data_root(tmp_path):
        with pytest.raises(DataError, match="entry_point and canonical_solution and test"):
            HumanEval().get_dataset()
        with pytest.raises(DataError, match="mbpp"):
            native_tasks()["mbpp"]().get_dataset()
    (tmp_path / "HumanEval.jsonl").write_text("{}\n{\n")
    with data_root(tmp_path), pytest.raises(DataError, match="line 2"):
        HumanEval().get_dataset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [("humaneval", 164), ("mbpp", 500), ("mbpp-sanitized", 427), ("humanevalplus", 164), ("mbppplus", 378),
     ("humanevalsynthesize-python", 164), ("humanevalsynthesize-js", 163)],
)  # fmt: skip
def test_every_reference_passes(name: str, number: int, full_data: Path) -> None:
    task = native_tasks()[name]()
    with Sandbox(allow_code_execution=True, preload=("numpy",)) as box:
        found = check_references(task, box)
    assert not found.failures
    assert len(found.result.problems) == number
    assert found.result.metrics["pass@1"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "js"])
def test_no_bug_passes(language: str, full_data: Path, box: Sandbox) -> None:
    task = HumanEvalPack(language)
    found = evaluate(task, [[task.buggy(doc)] for doc in task.documents], box)
    assert sum(found.values) == 0
    assert found.unscored == 0


def test_the_test_that_nothing_passes_is_put_right() -> None:
    doc = {
        "test": "def check(candidate):\n    assert _poly(*candidate(*inp), inp) <= 0.0001",
        "entry_point": "find_zero",
    }
    assert "abs(_poly(*inp, candidate(*inp))) <= 0.0001" in HumanEvalPlus().tests(doc)
