"""Patterns of task files of mid-2024, as forks of LMMS-Eval have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from fusion_eval.errors import DataError, MissingDependencyError
from fusion_eval.harness.multimodal.dialect import Style
from fusion_eval.harness.multimodal.setting import Setting
from tests.harness.multimodal.conftest import BASE, Folder
from tests.harness.multimodal.scripted import ScriptedModel

HELD_OUT = """
import json

from lmms_eval.tasks._task_utils.file_utils import generate_submission_file


def results(doc, results):
    return {"submission": {"id": doc["id"], "answer": results[0]}}


def write(results, args):
    with open(generate_submission_file("held_out.json", args), "w") as file:
        json.dump(results, file)
"""


def test_a_group_of_a_scored_split_and_one_for_a_server(folder: Folder, tmp_path: Path) -> None:
    folder.write(
        template_yaml=BASE, part_val__yaml="task: part_val\ninclude: template_yaml\n",
        part_test__yaml="task: part_test\ninclude: template_yaml\nprocess_results: !function utils.results\n"
        "metric_list:\n  - metric: submission\n    aggregation: !function utils.write\n    higher_is_better: true\n",
        group__yaml="group: part\ntask:\n- part_val\n- part_test\n", utils__py=HELD_OUT,
        files__yaml="group: files\ntask:\n- part_test\n",
    )  # fmt: skip
    outcome = folder.run(["part", "files"], ScriptedModel(lambda asked: "red"), output=tmp_path / "out")
    group = outcome.groups["part"]
    assert group.values["exact_match,none"].value == 1 / 6
    assert group.values["exact_match,none"].n == 6
    assert group.notes == ["left out, since they give no number: part_test"]
    assert outcome.groups["files"].notes == ["no mean: its tasks give no numbers"]
    written = json.loads((tmp_path / "out" / "submissions" / "held_out.json").read_text(encoding="utf-8"))
    assert written == [{"id": i, "answer": "red"} for i in range(6)]


def test_a_target_that_is_no_column_is_marked(task: Callable[..., Folder]) -> None:
    outcome = task(base=BASE.replace("doc_to_target: answer", "doc_to_target: answers")).run("mine")
    assert outcome.tasks["mine"].values["exact_match,none"].value == 0.0
    assert outcome.tasks["mine"].remarks == {
        "doc_to_target 'answers' is no column, so the word itself is the answer": 6
    }
    assert task().run("mine").tasks["mine"].remarks == {}


NO_DEFAULT = """
model_specific_prompt_kwargs:
  llava: {token: "<image>"}
  gpt4V: {token: ""}
"""
ASKS = """
def text(doc, prompt_kwargs=None):
    return prompt_kwargs["token"] + doc["question"]
"""


def test_settings_for_other_models_only_are_named(task: Callable[..., Folder]) -> None:
    written = task(NO_DEFAULT, ASKS, BASE.replace("doc_to_text: question", "doc_to_text: !function utils.text"))
    with pytest.raises(DataError, match=r"utils.py:3; model_specific_prompt_kwargs has .* for llava, gpt4V"):
        written.run("mine", model_names=["mine"])
    values = written.run("mine", model_names=["mine", "llava"]).tasks["mine"].values
    assert values["exact_match,none"].value == 1.0


LATE = "\ndef total(results):\n    import no_such_package_of_mine.part\n"


def test_what_an_aggregation_lacks_is_told_with_how_to_install_it(task: Callable[..., Folder]) -> None:
    listed = "metric_list:\n  - metric: exact_match\n    aggregation: !function utils.total\n"
    outcome = task(listed, LATE).run("mine")
    (failed,) = outcome.tasks["mine"].failed.values()
    assert failed.endswith("utils.py:3. Run: pip install no_such_package_of_mine")


SOFT = """
try:
    from no_such_package_of_mine.part import Node
except ImportError:
    pass


class Tree:
    def walk(self, node: Node):
        return node


def results(doc, results):
    return {"seen": float("path" in doc)}
"""


def test_a_package_that_a_file_first_goes_on_without_is_named(task: Callable[..., Folder]) -> None:
    written = task("process_results: !function utils.results\n", SOFT)
    with pytest.raises(MissingDependencyError, match="pip install no_such_package_of_mine"):
        written.run("mine")


@pytest.mark.parametrize(
    ("name", "style", "seen"), [("dc100_en", "eagle", 1.0), ("dc1", "eagle", 0.0), ("dc100_en", "current", 0.0)]
)
def test_pictures_reach_the_scores_of_tasks_that_had_no_key_for_it(
    folder: Folder, name: str, style: Style, seen: float
) -> None:
    features = datasets.Features({"id": datasets.Value("int64"), "question": datasets.Value("string"),
                                  "picture": datasets.Image()})  # fmt: skip
    pictures = [str(path) for path in sorted(folder.root.glob("*.png"))]
    rows = {"id": list(range(6)), "question": ["Say red"] * 6, "picture": pictures}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder.root / "data.parquet")
    base = BASE.replace("data.jsonl", "data.parquet").replace("path\ndoc", "picture\ndoc").replace("answer", "question")
    listed = "metric_list:\n  - metric: seen\n    aggregation: mean\n"
    folder.write(
        mine__yaml=f"task: {name}\n{base}{listed}process_results: !function utils.results\n",
        utils__py="def results(doc, results):\n    return {'seen': float('picture' in doc)}\n",
    )  # fmt: skip
    found = folder.run(name, setting=Setting(style=style)).tasks[name].values["seen,none"].value
    assert found == seen
