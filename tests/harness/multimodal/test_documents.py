"""Who sees the pictures of a document, and whose meaning a file has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fusion_eval.harness.multimodal.dialect import style_of
from fusion_eval.harness.multimodal.documents import media_columns, without_media
from fusion_eval.harness.spec import TaskSpec
from tests.harness.multimodal.conftest import Folder
from tests.harness.multimodal.scripted import ScriptedModel

FILE = """
task: mine
dataset_path: pictures.parquet
test_split: test
doc_to_visual: !function utils.visual
doc_to_text: !function utils.text
doc_to_target: answer
process_results: !function utils.results
metric_list:
  - metric: seen
    aggregation: !function utils.keep
"""
UTILS = """
def visual(doc):
    return [doc["image"], *doc["more"]]
def text(doc):
    return " ".join(sorted(doc))
def results(doc, results):
    return {"seen": sorted(doc)}
def keep(items):
    return items
"""


@pytest.fixture
def pictures(folder: Folder) -> Folder:
    from datasets import Dataset

    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    rows = [{"image": red, "more": [blue, red], "answer": "a", "nested": {"text": "x"}}] * 2
    Dataset.from_list(rows).to_parquet(str(folder.root / "pictures.parquet"))
    return folder.write(mine__yaml=FILE, utils__py=UTILS)


def test_hooks_for_texts_and_scores_see_no_pictures(pictures: Folder) -> None:
    task = pictures.run("mine", ScriptedModel(lambda asked: "")).tasks["mine"]
    asked = task.rows[0].arguments[0][0]
    assert asked["prompt"] == "answer nested"
    assert len(asked["media"]) == 3
    assert asked["media"][0] == asked["media"][2]
    assert task.values["seen,none"].value == [["answer", "nested"]] * 2


def test_a_task_that_scores_pictures_gets_them(pictures: Folder) -> None:
    pictures.write(mine__yaml=FILE + "process_results_use_image: true\n")
    task = pictures.run("mine", ScriptedModel(lambda asked: "")).tasks["mine"]
    assert task.values["seen,none"].value == [["answer", "image", "more", "nested"]] * 2


def test_columns_of_media(pictures: Folder) -> None:
    docs = pictures.suite("mine").task("mine").full_docs
    assert media_columns(docs) == ["image", "more"]
    assert without_media([{"a": Image.new("RGB", (1, 1)), "b": 1, "c": [Image.new("RGB", (1, 1))]}]) == [{"b": 1}]


@pytest.mark.parametrize(
    ("extra", "files", "expected"),
    [
        ({"model_specific_prompt_kwargs": {}}, {}, "eagle"),
        ({"lmms_eval_specific_kwargs": {}}, {}, "current"),
        ({}, {}, "current"),
        ({}, {"other.yaml": "model_specific_prompt_kwargs:\n  default: {}\n"}, "eagle"),
        ({}, {"_template": "lmms_eval_specific_kwargs:\n"}, "current"),
        ({}, {"a": "model_specific_prompt_kwargs:\n", "b.yaml": "lmms_eval_specific_kwargs:\n"}, "current"),
    ],
)
def test_whose_meaning_a_file_has(tmp_path: Path, extra: Any, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert style_of(TaskSpec(task="x", extra=extra), [tmp_path]) == expected
