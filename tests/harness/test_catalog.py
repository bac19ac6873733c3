from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.harness.catalog import TaskCatalog, peer_tasks
from fusion_eval.harness.plan import GroupPlan

FILES = {
    "one.yaml": "task: one\ntag: nice\ndataset_path: json\ndoc_to_text: q\n",
    "two.yaml": "task: two\ntag: nice\ndataset_path: json\ndoc_to_text: q\nnum_fewshot: 0\n",
    "g.yaml": """group: g
group_alias: G
task:
  - nice
  - task: one
    num_fewshot: 7
aggregate_metric_list: [{metric: acc, weight_by_size: false}]
""",
    "outer.yaml": """group: outer
num_fewshot: 2
task:
  - group: inner
    num_fewshot: 3
    task: [one]
  - task: fresh
    dataset_path: csv
    doc_to_text: x
""",
}


@pytest.fixture
def catalog(tmp_path: Path) -> TaskCatalog:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return TaskCatalog([tmp_path], tmp_path / "cache")


@pytest.mark.parametrize(
    ("asked", "tasks"),
    [
        ("one", ["one"]),
        ("nice", ["one", "two"]),
        ("t*", ["two"]),
        ("two,one", ["two", "one"]),
        (["one", "one"], ["one"]),
    ],
)
def test_names_tags_and_globs(catalog: TaskCatalog, asked: str | list[str], tasks: list[str]) -> None:
    assert list(catalog.select(asked).tasks) == tasks


def test_files_and_folders(catalog: TaskCatalog, tmp_path: Path) -> None:
    bare = TaskCatalog([], tmp_path / "cache")
    assert list(bare.select([str(tmp_path / "one.yaml")]).tasks) == ["one"]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "x.yaml").write_text("task: x\ndataset_path: json\ndoc_to_text: q\n")
    (tmp_path / "own" / "_base.yaml").write_text("dataset_path: json\n")
    assert list(bare.select([str(tmp_path / "own")]).tasks) == ["x"]
    assert bare.files == [tmp_path / "one.yaml", tmp_path / "own" / "x.yaml"]


def test_overrides_come_from_outside_in(catalog: TaskCatalog) -> None:
    (tmp := catalog.select("outer")).all_groups()
    assert tmp.tasks["one"].spec.num_fewshot == 2  # the caller's keys lie over the inner group's
    assert tmp.tasks["outer::fresh"].spec.num_fewshot == 2
    group = tmp.groups[0]
    assert [m.name if isinstance(m, GroupPlan) else m for m in group.members] == ["outer::inner", "outer::fresh"]
    assert group.leaves() == ["one", "outer::fresh"]


def test_an_item_overrides_its_group(catalog: TaskCatalog) -> None:
    with pytest.raises(ConfigError, match="'one' is asked for twice with different settings"):
        catalog.select("g")


def test_unknown_names_are_told_together_with_the_nearest(catalog: TaskCatalog) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.select(["onee", "zzz*", "two", "nowhere/x.yaml"])
    said = str(caught.value)
    assert said.startswith("3 faults")
    assert "Did you mean 'one'?" in said
    assert "'zzz*' matches no" in said
    assert "nowhere/x.yaml does not exist" in said


def test_faults_of_a_file_carry_its_lines(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("task: bad\ndoc_to_txt: q\nnum_fewshot: many\noutput_type: generate\n")
    with pytest.raises(ConfigError) as caught:
        TaskCatalog([tmp_path], tmp_path / "c").select("bad")
    said = str(caught.value)
    assert "bad.yaml:2 (doc_to_txt): is not a key of a task file. Did you mean 'doc_to_text'" in said
    assert "bad.yaml:3 (num_fewshot): 'many'" in said
    assert "bad.yaml:4 (output_type)" in said


def test_a_group_that_contains_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text("group: g\ntask: [g]\n")
    with pytest.raises(ConfigError, match="contains itself"):
        TaskCatalog([tmp_path], tmp_path / "c").select("g")


def test_duplicate_keys_become_notes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("task: a\ndataset_path: x\ntask: a\ndoc_to_text: q\n")
    (note,) = TaskCatalog([tmp_path], tmp_path / "c").select("a").notes
    assert "a.yaml:3" in note.where


def test_metadata_of_the_run_is_merged(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("task: a\ndataset_path: x\ndoc_to_text: q\nmetadata: [1]\n")
    plan = TaskCatalog([tmp_path], tmp_path / "c", {"size": 3}).select("a").tasks["a"]
    assert plan.spec.metadata == {"_metadata": [1], "size": 3}


def test_a_package_that_is_not_installed_is_told() -> None:
    with pytest.raises(ConfigError, match="not installed"):
        peer_tasks("no_such_package_anywhere")
