"""Discovery of folders, the walk-through of the task guide, and tasks by name from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.harness.catalog import TaskCatalog
from fusion_eval.harness.multimodal import get_task
from fusion_eval.harness.multimodal.adapter_names import families
from fusion_eval.harness.multimodal.dialect import EXTRA_KEYS
from tests.harness.multimodal.conftest import BASE, Folder
from tests.harness.multimodal.scripted import ScriptedModel

MYTASK = """
# Eagle/lmms_eval/tasks/mytask/mytask.yaml

dataset_path: my-dataset/CustomSet
dataset_kwargs:
  token: True
output_type: generate_until
doc_to_visual: !function utils.my_doc_to_visual
doc_to_text: !function utils.my_doc_to_text
doc_to_target: "answer"
generation_kwargs:
  max_new_tokens: 32
metadata:
  - version: 0.0
model_specific_prompt_kwargs:
  default:
    pre_prompt: "Question: "
    post_prompt: "\\nAnswer:"
"""
UTILS = '''
import logging
from PIL import Image

eval_logger = logging.getLogger("lmms-eval")

def my_doc_to_visual(doc):
    """Return a list of PIL images for the given datum."""
    # Assume `doc["image_path"]` points to a local file.

    img = Image.open(doc["image_path"]).convert("RGB")
    return [img]

def my_doc_to_text(doc, model_specific_prompt_kwargs=None):
    """Create the prompt string sent to the LMM."""
    if model_specific_prompt_kwargs is None:
        model_specific_prompt_kwargs = {}
    pre = model_specific_prompt_kwargs.get("pre_prompt", "")
    post = model_specific_prompt_kwargs.get("post_prompt", "")
    return f"{pre}{doc['question']}{post}"
'''


@pytest.fixture
def walk(folder: Folder, tmp_path: Path) -> Path:
    """The guide's folder `tasks/mytask` with its group, and its data laid out as the hub is, beside `folder`'s."""
    place = tmp_path / "walk" / "tasks" / "mytask"
    place.mkdir(parents=True)
    (place / "mytask.yaml").write_text(MYTASK, encoding="utf-8")
    (place / "utils.py").write_text(UTILS, encoding="utf-8")
    (place.parent / "mygroup.yaml").write_text("task: mytask\ngroup: mybenchmark\n", encoding="utf-8")
    data = tmp_path / "walk" / "data" / "my-dataset" / "CustomSet"
    data.mkdir(parents=True)
    rows = (folder.root / "data.jsonl").read_text(encoding="utf-8").replace('"path"', '"image_path"')
    (data / "test.jsonl").write_text(rows, encoding="utf-8")
    return tmp_path / "walk"


def said(asked: Any) -> str:
    return str(asked.text.split()[2])


@pytest.mark.parametrize("name", ["mytask", "mybenchmark"])
def test_the_guides_walk_through(walk: Path, name: str) -> None:
    task = get_task(name, model_name="eagle", folder=walk / "tasks", data_root=walk / "data")
    scores = task.run(ScriptedModel(said))
    own = scores if name == "mytask" else scores["mytask"]
    assert own == {"exact_match": 1.0}
    assert task.outcome is not None
    row = task.outcome.tasks["mytask"].rows[0]
    assert row.arguments[0][0]["prompt"] == "Question: Say red\nAnswer:"
    assert row.arguments[0][1]["max_new_tokens"] == 32
    if name == "mybenchmark":
        assert scores["mybenchmark"] == {"exact_match": 1.0}


def test_tasks_of_the_environment(walk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="mytask"):
        get_task("mytask", model_name="eagle")
    monkeypatch.setenv("FUSION_EVAL_TASKS", str(walk / "tasks"))
    task = get_task("mytask", model_name="eagle", data_root=walk / "data", limit=2)
    assert task.run(ScriptedModel(said)) == {"exact_match": 1.0}
    with pytest.raises(ConfigError, match="no model"):
        task.run()


def index(folder: Folder) -> Any:
    return TaskCatalog([folder.root], folder.root / ".cache", None, EXTRA_KEYS, "lmms_eval").index


def test_names_from_files_but_not_of_templates(folder: Folder) -> None:
    whole, part = BASE, BASE.replace("doc_to_text: question\n", "")
    found = index(folder.write(
        plain__yaml=whole, _hidden__yaml=whole, template__yaml=whole, part__yaml=part,
        own__yaml="include: template.yaml\ntask: named\n", heir__yaml="include: template.yaml\n",
    ))  # fmt: skip
    assert found.names("task") == ["heir", "named", "plain"]
    assert sorted(path.stem for path in found.anonymous) == ["_hidden", "part", "template"]


def test_groups_of_all_kinds(folder: Folder) -> None:
    for name, more in (("a", "group: mine\n"), ("b", "group: [mine, yours]\n"), ("c", "tag: marked\n")):
        folder.write(**{f"{name}__yaml": f"task: {name}\n{BASE}{more}"})
    folder.write(
        both__yaml="group: both\ntask: [mine, c]\n", stars__yaml="group: stars\ntask: ['?']\n",
        more__yaml="group: yours\ntask: c\n", inline__yaml="group: inline\ntask:\n  - task: a\n    repeats: 2\n",
    )  # fmt: skip
    expected = {
        "mine": ["a", "b"], "yours": ["c", "b"], "both": ["a", "b", "c"], "stars": ["a", "b", "c"], "inline": ["a"],
    }  # fmt: skip
    for name, members in expected.items():
        (group,) = folder.suite(name).selection.groups
        assert group.leaves() == members, name
    assert list(folder.suite("marked").selection.tasks) == ["c"]


def test_a_group_means_over_documents_of_metrics_with_one_name(folder: Folder) -> None:
    folder.write(
        a__yaml=f"task: a\n{BASE}", b__yaml=f"task: b\n{BASE}process_docs: !function utils.two\n",
        utils__py="def two(docs):\n    return docs.select([0, 1])\n", g__yaml="group: g\ntask: [a, b]\n",
    )  # fmt: skip
    outcome = folder.run("g", ScriptedModel(lambda asked: "red"))
    a, b = (outcome.tasks[name].values["exact_match,none"] for name in "ab")
    found = outcome.groups["g"].values["exact_match,none"]
    assert (a.value, b.value) == (1 / 6, 1 / 2)
    assert found.value == pytest.approx((1 + 1) / (6 + 2))
    assert a.stderr is not None
    assert b.stderr is not None
    pooled = ((5 * 6 * a.stderr**2 + 1 * 2 * b.stderr**2) / (8 - 2) / 8) ** 0.5
    assert found.stderr == pytest.approx(pooled)
    assert "2 tasks" in outcome.groups["g"].notes[0]


def test_the_users_folder_beats_the_packages_and_says_so(folder: Folder, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.yaml").write_text(f"task: mine\n{BASE}repeats: 2\n", encoding="utf-8")
    folder.write(mine__yaml=f"task: mine\n{BASE}")
    from fusion_eval.harness.multimodal import make_multimodal_suite

    suite = make_multimodal_suite("mine", include_path=[other, folder.root])
    assert suite.selection.tasks["mine"].spec.repeats == 1
    (note,) = suite.selection.notes
    assert str(other / "mine.yaml") in note.found


def test_includes_first_wins_and_the_working_directory_is_second(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").write_text("repeats: 3\ndescription: far\n", encoding="utf-8")
    folder.write(near=f"{BASE}repeats: 2\n", mine__yaml="include: [near, elsewhere]\ntask: mine\n")
    spec = folder.suite("mine").selection.tasks["mine"].spec
    assert (spec.repeats, spec.description) == (2, "far")


def test_broken_files_keep_their_reason(folder: Folder) -> None:
    folder.write(
        torn__yaml="task: torn\n  bad: [", lost__yaml="include: nowhere\ntask: lost\n",
        good__yaml=f"task: good\n{BASE}",
        empty__yaml=f"task: empty\n{BASE}process_results: !function missing.f\n",
    )  # fmt: skip
    found = index(folder)
    assert {path.stem for path, _ in found.unreadable} == {"torn", "lost"} - set(found.names("task"))
    assert "good" in found.names("task")
    for name, message in (("torn", "torn"), ("lost", "nowhere"), ("empty", "missing.py")):
        with pytest.raises(ConfigError, match=message):
            folder.run(name)


def test_a_folder_of_folders_is_asked_for_by_its_path(walk: Path) -> None:
    from fusion_eval.harness.dataset import DataSource
    from fusion_eval.harness.multimodal import make_multimodal_suite
    from fusion_eval.harness.suite import evaluate

    suite = make_multimodal_suite([str(walk / "tasks")], data=DataSource(walk / "data"))
    assert list(suite.selection.tasks) == ["mytask"]
    assert [group.name for group in suite.selection.groups] == ["mybenchmark"]
    outcome = evaluate(suite, ScriptedModel(said))
    assert outcome.tasks["mytask"].values["exact_match,none"].value == 1.0
    (walk / "tasks" / "torn.yaml").write_text("task: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"torn\.yaml"):
        make_multimodal_suite([str(walk / "tasks")])


def test_families() -> None:
    assert families("llava_onevision")[-1] == "llava"
    assert families("something_new") == ("something_new",)
    assert families("") == ()
