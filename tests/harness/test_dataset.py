from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.dataset import DataRequest, DataSource, split_of


def lines(path: Path, *values: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"x": value}) + "\n" for value in values))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: test, path: main/t.jsonl}\n---\n"
    lines(tmp_path / "org" / "carded" / "main" / "t.jsonl", 1, 2)
    (tmp_path / "org" / "carded" / "README.md").write_text(card)
    lines(tmp_path / "org" / "bare" / "sub" / "train.jsonl", 3)
    lines(tmp_path / "org" / "bare" / "sub" / "test.jsonl", 4)
    return tmp_path


def test_hub_names_are_found_under_the_root(root: Path, tmp_path: Path) -> None:
    source = DataSource(root, tmp_path / "cache")
    assert source.load(DataRequest("org/carded", "main"))["test"]["x"][:] == [1, 2]
    found = source.load(DataRequest("org/bare", "sub", {"trust_remote_code": True}))
    assert {name: rows["x"][:] for name, rows in found.items()} == {"train": [3], "test": [4]}


def test_files_lie_beside_the_task_or_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(tmp_path / "tasks" / "a.jsonl", 5)
    lines(tmp_path / "here" / "b.jsonl", 6)
    (tmp_path / "here" / "c.csv").write_text("x\n7\n")
    monkeypatch.chdir(tmp_path / "here")
    source = DataSource(cache_dir=tmp_path / "cache")
    for name, value, split in (("a.jsonl", 5, "test"), ("b.jsonl", 6, "dev"), ("c.csv", 7, "test")):
        found = source.load(DataRequest(name, "ignored", {}, tmp_path / "tasks", (split,)))
        assert found[split]["x"][:] == [value]
    found = source.load(DataRequest("json", None, {"data_files": {"s": "a.jsonl"}}, tmp_path / "tasks"))
    assert found["s"]["x"][:] == [5]


@pytest.mark.parametrize(
    "address",
    [
        "hf://datasets/owner/name@main/part/rows.jsonl",
        "https://hub.example/datasets/owner/name/resolve/main/part/rows.jsonl",
    ],
)
def test_addresses_of_files_on_the_hub_are_found_under_the_root(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "owner" / "name" / "part"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text('{"a": 7}\n')
    source = DataSource(tmp_path / "root", tmp_path / "cache", offline=True)
    request = DataRequest("json", kwargs={"data_files": {"test": address}})
    assert source.missing(request) is None
    assert source.load(request)["test"][0] == {"a": 7}
    lost = source.missing(DataRequest("json", kwargs={"data_files": {"test": address.replace("rows", "others")}}))
    assert lost is not None
    assert "others.jsonl" in lost.found


def test_a_file_named_from_the_root_of_its_tree(tmp_path: Path) -> None:
    lines(tmp_path / "tree" / "tasks" / "mine" / "rows.jsonl", 8)
    source = DataSource(cache_dir=tmp_path / "cache")
    kwargs = {"data_files": {"test": "tree/tasks/mine/rows.jsonl"}}
    request = DataRequest("json", kwargs=kwargs, folder=tmp_path / "tree" / "tasks" / "mine")
    assert source.missing(request) is None
    assert source.load(request)["test"]["x"][:] == [8]


def test_each_set_is_loaded_once(root: Path, tmp_path: Path) -> None:
    source = DataSource(root, tmp_path / "cache")
    assert source.load(DataRequest("org/carded", "main")) is source.load(DataRequest("org/carded", "main"))


def test_what_is_missing_is_told_with_what_is_there(root: Path, tmp_path: Path) -> None:
    source = DataSource(root, tmp_path / "cache")
    with pytest.raises(DataError, match=r"org/cardid.*Did you mean 'org/carded'"):
        source.load(DataRequest("org/cardid"))
    with pytest.raises(DataError, match=r"the file no\.jsonl does not exist"):
        source.load(DataRequest("no.jsonl"))
    with pytest.raises(DataError, match=r"no split 'tset'.*Did you mean 'test'"):
        split_of(source.load(DataRequest("org/carded", "main")), "tset", "task")


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "is empty; expected one document per line"), ('{"a": 1}\n{"a": oops}\n', r"rows\.jsonl:2: is not JSON")],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(DataError, match=said):
        DataSource(cache_dir=tmp_path / "cache").load(DataRequest(str(tmp_path / "rows.jsonl")))


def test_a_missing_split_says_where_splits_come_from() -> None:
    with pytest.raises(DataError, match=r"no split 'train'; expected one of test\. Give it a file in dataset_kwargs"):
        split_of({"test": []}, "train", "task")


def test_a_cache_that_cannot_be_written_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/home/nobody")

    monkeypatch.setattr("datasets.load.load_dataset", refused)
    with pytest.raises(DataError, match=r"the cache of data sets: /home/nobody: Permission denied.*Set HF_HOME"):
        DataSource(root).load(DataRequest("org/carded", "main"))
