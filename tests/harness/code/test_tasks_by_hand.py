"""Tasks whose data are not shipped, on documents of the same layout: MultiPL-E, contests, DS-1000, BLEU, filling in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError, DataError
from fusion_eval.harness.code import data_root, evaluate, native_tasks
from fusion_eval.harness.code.contest import Apps, CodeContests, same_output
from fusion_eval.harness.code.ds1000 import DS1000Task
from fusion_eval.harness.code.multiple import MultiPLE
from fusion_eval.harness.code.texts import FillIn, TextTask
from fusion_eval.sandbox import Sandbox
from fusion_eval.sandbox.languages import missing_tools

JS_TESTS = "\nconst assert = require('node:assert');\nassert.equal(double(2), 4);\n"
CPP_TESTS = "\nint main() { assert(twice(2) == 4); }\n"
JAVA_TESTS = "\n    public static void main(String[] args) { assert(twice(2) == 4); }\n}\n"
TRANSLATED = {
    "js": ("function double(x){\n", "  return 2 * x;\n}", JS_TESTS),
    "pl": ("sub double {\n    my($x) = @_;\n", "    return 2 * $x;\n}", "\nif (double(2) != 4) { exit 1; }\n"),
    "sh": ("double() {\n", "    echo $((2 * $1))\n}", "\n[[ $(double 2) = 4 ]] || exit 1\n"),
    "cpp": ("#include <cassert>\nlong twice(long x) {\n", "  return 2 * x;\n}", CPP_TESTS),
    "java": ("class Problem {\n    public static long twice(long x) {\n", "        return 2 * x;\n    }", JAVA_TESTS),
    "rs": ("fn twice(x: isize) -> isize {\n", "    2 * x\n}", "\nfn main() { assert_eq!(twice(2), 4); }\n"),
    "cs": (
        "using System.Diagnostics;\nclass Problem {\n    static long Twice(long x) {\n",
        "        return 2 * x;\n    }",
        "\n    public static void Main(string[] args) {\n    Debug.Assert(Twice(2L) == (4L));\n    }\n}\n",
    ),
    "d": (
        "long twice(long x)\n{\n",
        "  return 2 * x;\n}",
        "\nunittest\n{\n    assert(twice(2L) == 4L);\n}\nvoid main(){}\n",
    ),
    "rkt": ("#lang racket\n(define (twice x)\n", "  (* 2 x))", "\n(require rackunit)\n(check-equal? (twice 2) 4)\n"),
    "ml": ("let twice (x : int) : int =\n", "  2 * x\n", "\nlet () = assert (twice 2 = 4)\n"),
    "py": ("def twice(x):\n", "    return 2 * x\n", "\nassert twice(2) == 4\n"),
}


def write(folder: Path, name: str, docs: list[dict[str, object]]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))


@pytest.mark.parametrize("language", TRANSLATED)
def test_multiple(language: str, tmp_path: Path, box: Sandbox) -> None:
    prompt, solution, tests = TRANSLATED[language]
    doc = {
        "name": "HumanEval_0_double",
        "prompt": prompt,
        "tests": tests,
        "stop_tokens": ["\nSTOP"],
        "language": language,
    }
    write(tmp_path, f"humaneval-{language}", [doc])
    with data_root(tmp_path):
        task = MultiPLE(language)
        wrong = solution.replace("2", "3")
        rows = [[task.postprocess_generation(f"{prompt.strip()}\n{text}\nSTOP more", 0) for text in (solution, wrong)]]
        assert "STOP" not in rows[0][0]
        found = evaluate(task, rows, box)
    if missing_tools(task.language):
        assert found.skipped
        assert found.metrics == {}
    else:
        assert [verdict.passed for verdict in found.verdicts[0]] == [True, False], found.verdicts[0][0].detail


def test_apps(tmp_path: Path, box: Sandbox) -> None:
    stdin = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]}
    call = {"fn_name": "twice", "inputs": [[1], [2]], "outputs": [[2], [4]]}
    write(tmp_path, "apps", [
        {"problem_id": 0, "question": "Double.", "solutions": json.dumps(["print(2 * int(input()))"]),
         "input_output": json.dumps(stdin), "difficulty": "interview", "starter_code": ""},
        {"problem_id": 1, "question": "Double.", "solutions": json.dumps(["def twice(x):\n    return 2 * x"]),
         "input_output": json.dumps(call), "difficulty": "interview", "starter_code": "def twice(x):"},
    ])  # fmt: skip
    with data_root(tmp_path):
        task = Apps("interview")
        docs = task.get_dataset()
        assert "Standard Input" in task.get_prompt(docs[0])
        assert "Call-Based" in task.get_prompt(docs[1])
        half = "n = int(input())\nprint(2 if n == 1 else 0)"
        method = "class Solution:\n    def twice(self, x):\n        return 2 * x if x == 1 else (3,)"
        found = evaluate(task, [[task.solution(docs[0]), half], [task.solution(docs[1]), method]], box)
        assert task.postprocess_generation(task.get_prompt(docs[0]) + "x = 1\nQUESTION", 0) == "x = 1"
        with pytest.raises(DataError, match="competition"):
            Apps("competition").get_dataset()
        with pytest.raises(ConfigError, match="introductory"):
            Apps("introductry")
    assert found.metrics == {"pass@1": 0.5, "strict_accuracy": 0.5, "average_accuracy": 0.75}


def test_code_contests(tmp_path: Path, box: Sandbox) -> None:
    tests = {"input": ["1\n"], "output": ["2\n"]}
    solutions = {"language": ["CPP", "PYTHON3"], "solution": ["", "print(2 * int(input()))"]}
    write(tmp_path, "code_contests", [
        {"name": "p", "description": "Double.", "public_tests": tests, "private_tests": tests, "solutions": solutions}
    ])  # fmt: skip
    with data_root(tmp_path):
        task = CodeContests()
        doc = task.get_dataset()[0]
        assert evaluate(task, [[task.solution(doc)]], box).metrics["pass@1"] == 1.0
        assert evaluate(task, [["print(3)"]], box).metrics["average_accuracy"] == 0.0


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1 \n2\n", "1\n2", True),
        ("0.333333", "0.3333331", True),
        ("1 2", "1\n2", True),
        ("1", "2", False),
        ("", "1", False),
        ("YES", "yes", False),
        ("3\n4", ["3", "4"], True),
    ],
)
def test_outputs_are_compared_by_words_and_numbers(found: str, expected: object, same: bool) -> None:
    assert same_output(found, expected) is same  # type: ignore[arg-type]


def test_ds1000(tmp_path: Path, box: Sandbox) -> None:
    context = (
        "def test_execution(solution):\n    scope = {'x': [1, 2]}\n    exec(solution, scope)\n"
        "    assert scope['result'] == 3\n\ndef test_string(solution):\n    assert 'sum' in solution\n"
    )
    doc = {"prompt": "Sum x.\n<code>\n", "code_context": context, "reference_code": "result = sum(x)",
           "metadata": {"library": "Pandas", "problem_id": 7}}  # fmt: skip
    write(tmp_path, "ds1000", [doc])
    with data_root(tmp_path):
        task = DS1000Task("Pandas")
        good = task.postprocess_generation(doc["prompt"] + "result = sum(x)\n</code>", 0)
        assert good == "result = sum(x)\n"
        found = evaluate(task, [[good, "result = 1 + 2", "result = 0"]], box)
    assert [verdict.passed for verdict in found.verdicts[0]] == [True, False, False]
    assert found.integrity == {"in_process": 3}


def test_ds1000_by_insertion(tmp_path: Path) -> None:
    doc = {"prompt": "x = 1\n[insert]\nprint(y)", "code_context": "", "reference_code": "y = x", "metadata": {}}
    write(tmp_path, "ds1000", [doc])
    with data_root(tmp_path):
        task = native_tasks()["ds1000-all-insertion"]()
        assert task.get_prompt(task.get_dataset()[0]) == {"prefix": "x = 1\n", "suffix": "\nprint(y)"}
        assert task.postprocess_generation("y = x\n</code>", 0) == "y = x\n"
        assert native_tasks()["ds1000-numpy-completion"]().get_prompt(doc) == doc["prompt"]
        with pytest.raises(DataError, match="insertion"):
            task.get_prompt({**doc, "prompt": "x"})


def test_conala(tmp_path: Path, code_data: Path) -> None:
    pytest.importorskip("sacrebleu")
    write(tmp_path, "conala", [{"intent": "sort x", "rewritten_intent": "sort list `x`", "snippet": "x.sort()"}])
    (tmp_path / "conala_few_shot_prompts.json").write_text(
        (code_data / "bigcode_fixtures/few_shot/conala_few_shot_prompts.json").read_text()
    )
    with data_root(tmp_path):
        task = TextTask("conala")
        prompt = task.get_prompt(task.get_dataset()[0])
        assert prompt.count("Instruction:") == 3
        assert prompt.endswith("sort list `x`\nSolution:\n")
        assert task.postprocess_generation(f"{prompt}x.sort()\nInstruction:", 0) == "x.sort()"
        found = evaluate(task, [["x.sort()"]])
    assert found.metrics["bleu"] == pytest.approx(1.0)


def test_filling_in(tmp_path: Path) -> None:
    docs = [{"prompt": "a = ", "suffix": "\nb", "canonical_solution": text, "language": language}
            for text, language in (("1", "py"), ("2;", "js"))]  # fmt: skip
    write(tmp_path, "santacoder-fim-task", docs)
    with data_root(tmp_path):
        task = FillIn()
        assert task.get_prompt(docs[0]) == {"prefix": "a = ", "suffix": "\nb"}
        found = evaluate(task, [[task.postprocess_generation(" 1\n", 0)], ["3;"]])
    assert found.metrics == {"py exact match": 1.0, "js exact match": 0.0, "exact_match": 0.5}
