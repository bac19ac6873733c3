from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.harness.build import RunOptions, build_requests, load_tasks
from fusion_eval.harness.catalog import TaskCatalog, library
from fusion_eval.harness.context import BuildContext
from fusion_eval.harness.dataset import DataRequest, DataSource
from fusion_eval.harness.function import ModuleSpace
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
}  # fmt: skip


class MadeUp(DataSource):
    """Any data set of the hub, ten equal rows in every split."""

    def load(self, request: DataRequest) -> Any:
        from datasets import Dataset

        rows = Dataset.from_list([ROWS[request.path]] * 10)
        return {split: rows for split in ("train", "validation", "test", "dev")}


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
    ],
)
def test_prompts(name: str, first: tuple[str, ...], tmp_path: Path) -> None:
    catalog = TaskCatalog([library()], tmp_path)
    options = RunOptions(limit=2)
    tasks = load_tasks(catalog.select(name), ModuleSpace([library()]), BuildContext(MadeUp()), options)
    built = build_requests(name, tasks[name], options)
    assert built.requests[0].args == first


def test_every_task_builds_requests(tmp_path: Path) -> None:
    catalog = TaskCatalog([library()], tmp_path)
    names = [name for name, entry in catalog.index.entries.items() if entry.kind in ("task", "group")]
    options = RunOptions(limit=1, num_fewshot=0)
    tasks = load_tasks(catalog.select(names), ModuleSpace([library()]), BuildContext(MadeUp()), options)
    assert len(tasks) == 13 + 57 + 27
    for name, task in tasks.items():
        assert build_requests(name, task, options).requests
