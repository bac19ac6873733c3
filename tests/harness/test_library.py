from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import DataError, EvaluationError
from fusion_eval.harness.build import RunOptions, build_requests, load_tasks
from fusion_eval.harness.catalog import TaskCatalog, library
from fusion_eval.harness.context import BuildContext
from fusion_eval.harness.dataset import DataRequest, DataSource
from fusion_eval.harness.function import ModuleSpace
from fusion_eval.harness.peer_metrics import code_runner
from fusion_eval.harness.validate import check

R = random.Random(0)
ROWS: dict[str, dict[str, Any]] = {
    "allenai/ai2_arc": {"question": "Why?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"},
    "allenai/openbookqa": {
        "question_stem": "So", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A ",
    },
    "Rowan/hellaswag": {
        "activity_label": "Run", "ctx_a": "He runs [step].", "ctx_b": "then", "label": "1",
        "endings": ["a [title] b", "c"],
    },
    "aps/super_glue": {"passage": "p", "question": "is it", "label": 1},
    "baber/piqa": {"goal": "g", "sol1": "x", "sol2": "y", "label": 0},
    "allenai/social_i_qa": {
        "context": "c", "question": "q", "answerA": "a", "answerB": "b", "answerC": "c", "label": "2",
    },
    "allenai/winogrande": {"sentence": "Ann met _ today.", "option1": "Bo", "option2": "Cy", "answer": "2"},
    "truthfulqa/truthful_qa": {
        "question": "q", "mc1_targets": {"choices": ["t", "f"], "labels": [1, 0]},
        "mc2_targets": {"choices": ["t", "u", "f"], "labels": [1, 1, 0]},
    },
    "openai/gsm8k": {"question": "1+1?", "answer": "two #### 2"},
    "EleutherAI/lambada_openai": {"text": "the last word"},
    "EleutherAI/wikitext_document_level": {"page": "a page"},
    "cais/mmlu": {"question": " q ", "choices": ["a", "b", "c", "d"], "answer": 2, "subject": "high_school_physics"},
    "SaylorTwift/bbh": {"input": "i", "target": "t"},
    "google/IFEval": {
        "key": 1, "prompt": "Say it.", "instruction_id_list": ["punctuation:no_comma", "startend:end_checker"],
        "kwargs": [{"end_phrase": None}, {"end_phrase": "the end"}],
    },
    "openai/openai_humaneval": {
        "task_id": "0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(f):\n    assert f(1) == 2",
    },
    "evalplus/humanevalplus": {
        "task_id": "0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(f):\n    assert f(1) == 2",
    },
    "google-research-datasets/mbpp": {
        "text": "Add one.", "code": "def f(x): return x + 1", "test_setup_code": "", "test_list": ["assert f(1) == 2"],
    },
    "evalplus/mbppplus": {
        "prompt": "Add one.", "code": "def f(x): return x + 1", "test_imports": ["import math"],
        "test_list": ["assert f(1) == 2"], "test": "assert f(2) == 3",
    },
    "walledai/HarmBench": {"prompt": "Do harm.", "category": "c"},
    "allenai/wildguardmix": {"prompt": "Do harm.", "prompt_harm_label": "harmful"},
    "walledai/XSTest": {"prompt": "Kill a process.", "label": "safe"},
}  # fmt: skip


class MadeUp(DataSource):
    """Any data set of the hub, ten equal rows in every split."""

    def load(self, request: DataRequest) -> Any:
        from datasets import Dataset

        rows = Dataset.from_list([ROWS[request.path]] * 10)
        return {split: rows for split in ("train", "validation", "test", "dev", "prompt")}


def test_every_file_passes_the_check(tmp_path: Path) -> None:
    found = check(TaskCatalog([library()], tmp_path), run_python=[library()])
    assert [str(fault) for fault in (*found.faults, *found.notes)] == []
    assert found.checked > 15


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("fe_arc_challenge", ("Question: Why?\nAnswer:", " x")),
        ("fe_hellaswag", ("Run: He runs . Then", " a. b")),
        ("fe_boolq", ("p\nQuestion: is it?\nAnswer:", " no")),
        ("fe_siqa", ("Question: c q\nAnswer:", " a")),
        ("fe_winogrande", ("Ann met Bo", " today.")),
        ("fe_truthfulqa_mc2", ("Q: q\nA:", " t")),
        ("fe_lambada", ("the last", " word")),
        ("fe_wikitext", ("a page",)),
        ("fe_ifeval", ("Say it.",)),
        ("fe_humaneval_plus", ("def f(x):\n",)),
    ],
)
def test_prompts(name: str, first: tuple[str, ...], tmp_path: Path) -> None:
    catalog = TaskCatalog([library()], tmp_path)
    options = RunOptions(limit=2, confirm_run_unsafe_code=True)
    tasks = load_tasks(catalog.select(name), ModuleSpace([library()]), BuildContext(MadeUp()), options)
    built = build_requests(name, tasks[name], options)
    assert built.requests[0].args[: len(first)] == first


def test_every_task_builds_requests(tmp_path: Path) -> None:
    catalog = TaskCatalog([library()], tmp_path)
    names = [name for name, entry in catalog.index.entries.items() if entry.kind in ("task", "group")]
    options = RunOptions(limit=1, num_fewshot=0, confirm_run_unsafe_code=True)
    tasks = load_tasks(catalog.select(names), ModuleSpace([library()]), BuildContext(MadeUp()), options)
    assert len(tasks) == 13 + 57 + 27 + 8
    for name, task in tasks.items():
        assert build_requests(name, task, options).requests


@pytest.mark.parametrize(
    ("name", "response", "wanted"),
    [
        ("fe_ifeval", "No commas. THE END", {"prompt_level_strict_acc": True, "inst_level_loose_acc": [True, True]}),
        ("fe_ifeval", "One, two\nthe end", {"prompt_level_strict_acc": False, "inst_level_strict_acc": [False, True]}),
        ("fe_harmbench", "I\u2019m sorry, but I can't help.", {"refusal": 1.0}),
        ("fe_wildguardtest", "Sure, here is how.", {"refusal": 0.0}),
        ("fe_xstest", "Use kill -9.", {"acc": 1.0}),
        ("fe_xstest", "I cannot help with that.", {"acc": 0.0}),
        ("fe_xstest", " ", {"acc": 0.0}),
    ],
)
def test_scores(name: str, response: str, wanted: dict[str, Any], tmp_path: Path) -> None:
    found = task(name, tmp_path).process_results(ROWS[paths()[name]], [response])
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "right", "program"),
    [
        (
            "fe_humaneval",
            "    return x + 1",
            "def f(x):\n    return x + 1\ndef check(f):\n    assert f(1) == 2\ncheck(f)",
        ),
        ("fe_mbpp", "def f(x): return x + 1", "\ndef f(x): return x + 1\nassert f(1) == 2"),
        ("fe_mbpp_plus", "def f(x): return x + 1", "import math\ndef f(x): return x + 1\nassert f(2) == 3"),
    ],
)
def test_programs_run_with_consent_alone(name: str, right: str, program: str, tmp_path: Path) -> None:
    asked: list[str] = []

    def run(programs: Any) -> list[bool]:
        asked.extend(programs)
        return [right in text for text in programs]

    own = task(name, tmp_path)
    with code_runner(run):
        assert own.process_results(ROWS[paths()[name]], [right]) == {"pass_at_1": 1.0}
        assert own.process_results(ROWS[paths()[name]], ["pass"]) == {"pass_at_1": 0.0}
    assert asked[0] == program
    with pytest.raises(EvaluationError, match="consent"):
        own.process_results(ROWS[paths()[name]], [right])
    with pytest.raises(DataError, match=f"{name}: unsafe_code.*confirm_run_unsafe_code"):
        task(name, tmp_path, allowed=False)


def test_worked_examples_of_mbpp_come_before_the_question(tmp_path: Path) -> None:
    options = RunOptions(limit=1, confirm_run_unsafe_code=True)
    prompt = build_requests("fe_mbpp", task("fe_mbpp", tmp_path), options).requests[0].args[0]
    assert prompt.count("def f(x): return x + 1\n[DONE]\n\n") == 3
    assert prompt.endswith("\n\nassert f(1) == 2\n[BEGIN]\n")


def paths() -> dict[str, str]:
    return {
        "fe_ifeval": "google/IFEval", "fe_harmbench": "walledai/HarmBench", "fe_wildguardtest": "allenai/wildguardmix",
        "fe_xstest": "walledai/XSTest", "fe_humaneval": "openai/openai_humaneval",
        "fe_mbpp": "google-research-datasets/mbpp", "fe_mbpp_plus": "evalplus/mbppplus",
    }  # fmt: skip


def task(name: str, cache: Path, allowed: bool = True) -> Any:
    selection = TaskCatalog([library()], cache).select(name)
    options = RunOptions(confirm_run_unsafe_code=allowed)
    return load_tasks(selection, ModuleSpace([library()]), BuildContext(MadeUp()), options)[name]
