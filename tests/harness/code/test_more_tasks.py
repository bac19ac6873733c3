"""Tasks whose data are not shipped, on documents of the same layout: instructions, perturbations, repair, run times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import ConfigError, DataError
from fusion_eval.harness.code import check_references, data_root, evaluate, native_tasks
from fusion_eval.harness.code.code_to_text import CodeToText, sentence_bleu
from fusion_eval.harness.code.generate import Options, requests
from fusion_eval.harness.code.instruct import InstructHumanEval, WizardHumanEval
from fusion_eval.harness.code.mercury import Mercury
from fusion_eval.harness.code.repair import Parity, PythonBugs, QuixBugs
from fusion_eval.harness.code.robust import PerturbedHumanEval, robust_pass
from fusion_eval.harness.code.student import StudentEval
from fusion_eval.sandbox import Sandbox

PROMPT = 'def twice(x):\n    """Twice x."""\n'
DOC = {
    "task_id": "HumanEval/0",
    "prompt": PROMPT,
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def write(folder: Path, name: str, docs: list[dict[str, Any]]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))


def passed(found: Any) -> list[list[bool]]:
    return [[verdict.passed for verdict in row] for row in found.verdicts]


def test_instructions_with_and_without_the_signature(tmp_path: Path, box: Sandbox) -> None:
    context = "import math\n\n\n" + PROMPT
    write(tmp_path, "instructhumaneval", [{**DOC, "instruction": "Write twice.", "context": context}])
    with data_root(tmp_path):
        task = InstructHumanEval()
        doc = task.get_dataset()[0]
        assert task.get_prompt(doc) == {"instruction": "Write twice.", "context": context}
        right = task.postprocess_generation(context + "    return math.floor(2 * x)\nprint(twice(1))", 0)
        assert "print" not in right
        free = InstructHumanEval(with_context=False)
        assert free.get_prompt(doc)["context"] == ""
        said = "Yes:\n```python\ndef twice(x):\n    return math.floor(2 * x)\n\nprint(twice(1))\n```\nThat is all."
        fenced = free.postprocess_generation(said, 0)
        assert passed(evaluate(free, [[right, fenced, "def twice(x): return x"]], box)) == [[True, True, False]]


def test_wizard(tmp_path: Path, box: Sandbox) -> None:
    write(tmp_path, "HumanEval", [DOC])
    with data_root(tmp_path):
        task = WizardHumanEval()
        prompt = task.get_prompt(task.get_dataset()[0])
        assert prompt.endswith("### Response:")
        assert "\tTwice" not in prompt
        assert '\t"""Twice' in prompt
        said = "\n```python\ndef twice(x):\n\treturn 2 * x\n\n# Example usage\nassert False\n"  # a fence left open
        assert passed(evaluate(task, [[task.postprocess_generation(prompt + said, 0)]], box)) == [[True]]


def test_perturbed(tmp_path: Path, box: Sandbox) -> None:
    docs = [{**DOC, "seed": seed, "perturbation_name": "tabs"} for seed in range(3)]
    write(tmp_path, "perturbed_humaneval-format", docs)
    with data_root(tmp_path):
        task = PerturbedHumanEval("format", 2)
        assert len(task.get_dataset()) == 2
        right, wrong = PROMPT + "    return 2 * x\n", PROMPT + "    return x\n"
        found = evaluate(task, [[right, right], [right, wrong]], box)
    assert found.metrics["robust-pass-at-1/tabs"] == 0.5
    assert found.metrics["alt-robust-pass-at-1/tabs"] == 0.5
    assert found.metrics["pass@1"] == 0.75
    assert len(set(found.problems)) == 2
    with pytest.raises(ConfigError, match="func_name"):
        PerturbedHumanEval("funcname")


def test_robust_pass_by_hand() -> None:
    docs = [{"perturbation_name": "p", "task_id": t, "seed": s} for t in "ab" for s in (0, 1)]
    metrics = robust_pass(docs, [[True, False, True], [True, True, False], [True] * 3, [True] * 3])
    assert metrics["robust-pass-at-1/p"] == pytest.approx((1 / 3 + 1) / 2)
    assert metrics["alt-robust-pass-at-1/p"] == pytest.approx((4 / 9 + 1) / 2)
    with pytest.raises(DataError, match="two documents"):
        robust_pass([docs[0], docs[0]], [[True], [True]])
    with pytest.raises(DataError, match="as many as"):
        robust_pass(docs[:2], [[True], [True, False]])


def test_students(tmp_path: Path, box: Sandbox) -> None:
    base = {"problem": "twice", "entrypoint": "twice", "prompt": PROMPT, "assertions": ["assert twice(2) == 4"]}
    write(tmp_path, "studenteval", [
        {**base, "completion": "    return x", "is_first_failure": True},
        {**base, "completion": "    return 2 * x", "is_last_success": True},
        {**base, "completion": ""},
    ])  # fmt: skip
    with data_root(tmp_path):
        task = StudentEval()
        assert len(task.get_dataset()) == 2
        assert check_references(task, box).failures == {}
        right, wrong = PROMPT + "    return 2 * x", PROMPT + "    return x"
        metrics = evaluate(task, [[wrong], [right]], box).metrics
    assert metrics == {"pass@1": 0.5, "pass@1/first_failure": 0.0, "pass@1/last_success": 1.0}


def test_quixbugs(tmp_path: Path, box: Sandbox) -> None:
    fixed = "def last(node):\n    while node.next:\n        node = node.next\n    return node.value\n"
    tests = (
        "class Node:\n    def __init__(self, value, next=None):\n        self.value, self.next = value, next\n"
        "assert last(Node(1, Node(2))) == 2\n"
    )
    buggy = fixed.replace("while", "if")
    doc = {"name": "last", "buggy_program": buggy, "solution": fixed, "tests": tests + "assert last(Node(1)) == 1\n"}
    doc["tests"] += "assert last(Node(1, Node(2, Node(3)))) == 3\n"
    write(tmp_path, "quixbugs", [doc])
    with data_root(tmp_path):
        task = QuixBugs()
        prompt = task.get_prompt(doc)
        assert prompt.endswith("# Fixed function\ndef")
        row = [
            task.postprocess_generation(prompt + code.removeprefix("def") + "\nprint(1)", 0) for code in (fixed, buggy)
        ]
        assert row[0] == fixed
        assert passed(evaluate(task, [row], box)) == [[True, False]]
        assert check_references(task, box).failures == {}
        assert QuixBugs("edit").get_prompt(doc).endswith("<commit_msg>Fix bug in last<commit_after>")
        asked = requests("quixbugs", task, Options(), tokenizer=lambda text: {"input_ids": text.split()})
        assert asked[0].args[1]["max_new_tokens"] == 2 * len(prompt.split())
    with pytest.raises(ConfigError, match="prompt_codex"):
        QuixBugs("promptcodex")


def test_python_bugs(tmp_path: Path) -> None:
    doc = {
        "task": "bin-op",
        "prompt_code": "def f(a):\n    return a - 1",
        "correct_code": "def f(a):\n    return a + 1",
    }
    write(tmp_path, "python-bugs", [doc])
    with data_root(tmp_path):
        task = PythonBugs()
        prompt = task.get_prompt(doc)
        assert prompt.endswith("# Fixed binary operator\ndef")
        row = [task.postprocess_generation(prompt + rest, 0) for rest in (" f(a):\n    return a + 1\n# x", " f(a): 1")]
        assert evaluate(task, [row]).metrics == {"mean exact match": 0.5}
        assert "<commit_msg>Fix binary operator<commit_after>" in PythonBugs("edit").get_prompt(doc)


def test_parity(box: Sandbox) -> None:
    task = Parity()
    docs = task.get_dataset()
    assert "sum([c1,c2,b3,b4])" in task.get_prompt(docs[1])
    assert "% 3" in task.get_prompt(docs[4])
    rows = [[task.postprocess_generation(task.get_prompt(doc) + task.solution(doc).removeprefix("def"), i)]
            for i, doc in enumerate(docs)]  # fmt: skip
    rows[4] = ["def parity(b1,b2,b3,b4):\n    return sum([b1,b2,b3,b4]) % 3"]
    metrics = evaluate(task, rows, box).metrics
    assert metrics["pass@1"] == pytest.approx(0.8)
    assert metrics["pass@1/1 bugs"] == 1.0
    assert metrics["pass@1/5 bugs"] == 0.0


def slow_sum(loops: int) -> str:
    work = f"        for _ in range({loops}):\n            pass\n" if loops else ""
    return f"class Solution:\n    def total(self, xs):\n{work}        return sum(xs)\n"


def test_mercury(tmp_path: Path, box: Sandbox) -> None:
    doc = {
        "slug_name": "total", "difficulty": "Easy", "pretty_content": ["Add them."], "entry_point": "total",
        "prompt": "class Solution:\n    def total(self, xs):\n",
        "solutions": [{"solution": slow_sum(0)}, {"solution": slow_sum(4_000_000)}, {"solution": "class Solution: 1"}],
        "convert_offline": "def convert_offline(case):\n    return ([case[0]], case[1])",
        "evaluate_offline": "def evaluate_offline(inputs, outputs, expected):\n    return outputs == expected",
        "test_cases": json.dumps([{"input": [1, 2], "expected": 3}, {"input": [], "expected": 0}]),
    }  # fmt: skip
    write(tmp_path, "mercury", [doc])
    with data_root(tmp_path):
        task = Mercury()
        prompt = task.get_prompt(doc)
        quick = task.postprocess_generation(prompt + "        return sum(xs)\nprint(1)", 0)
        assert quick == slow_sum(0).rstrip("\n")
        wrong = quick.replace("sum(xs)", "1")
        found = evaluate(task, [[quick, wrong, slow_sum(40_000_000)]], box)
        assert passed(found) == [[True, False, True]]
    assert found.metrics["pass@1"] == pytest.approx(2 / 3)
    assert found.metrics["beyond@1"] == found.metrics["beyond@1/easy"]
    assert 0.15 < found.metrics["beyond@1"] <= 1 / 3  # the quick one near 1, the wrong and the slow one 0


def test_code_to_text(tmp_path: Path) -> None:
    code = 'def twice(x):\n    """Twice x."""\n    return 2 * x'
    doc = {"code": code, "docstring": "Twice x.", "docstring_tokens": ["Twice", "x", "."]}
    (tmp_path / "code_to_text").mkdir()
    write(tmp_path, "code_to_text/python", [doc])
    with data_root(tmp_path):
        task, left = CodeToText(), CodeToText(signature_only=True)
        assert task.get_prompt(doc).startswith("def twice(x):")
        assert "Twice" not in task.get_prompt(doc)
        assert left.get_prompt(doc) == 'def twice(x):\n    """'
        said = task.postprocess_generation(task.get_prompt(doc) + 'Twice x.\n"""\nmore', 0)
        assert left.postprocess_generation(left.get_prompt(doc) + 'Twice x."""\n', 0) == said == "Twice x."
        assert evaluate(task, [[said]]).metrics == {"bleu": pytest.approx(100.0)}
        assert evaluate(task, [["Nothing of the kind here"]]).metrics["bleu"] < 30


def test_sentence_bleu_by_hand() -> None:
    # 3 of 4 unigrams; with one added, 2+1 of 3+1, 1+1 of 2+1, 0+1 of 1+1
    found, wanted = list("abcd"), list("abce")
    assert sentence_bleu(found, wanted) == pytest.approx((3 / 4 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


def test_names_of_the_peer_are_known() -> None:
    names = set(native_tasks())
    assert {"perturbed-humaneval-natgen-num_seeds_10", "codexglue_code_to_text-php", "starcoder_fim"} <= names
