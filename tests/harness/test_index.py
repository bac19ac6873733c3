from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.harness import index as module
from fusion_eval.harness.index import build_index, read_head, scan_head
from fusion_eval.harness.yaml_file import parse_text


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".yaml").write_text(text)
    return folder


def test_tasks_groups_tags_and_classes(tmp_path: Path) -> None:
    write(
        tmp_path, a="task: one\ntag: [t, u]\n", b="task: two\ntag: t\n", c="group: g\ntask:\n  - one\n",
        d="class: !function task.Foo\ntask: py\n", e="dataset_path: x\n", sub__f="include: ../b.yaml\ntask: three\n",
    )  # fmt: skip
    index = build_index([tmp_path], tmp_path / "cache")
    assert index.names("task") == ["one", "three", "two"]
    assert index.names("group") == ["g"]
    assert index.names("class") == ["py"]
    assert index.entries["t"].members == ("one", "three", "two")
    assert [path.name for path in index.anonymous] == ["e.yaml"]


def test_a_later_folder_wins_and_the_first_file_of_a_folder(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", x="task: t\n", y="task: t\n"), write(tmp_path / "b", z="task: t\n")
    index = build_index([first, second], tmp_path / "cache")
    assert index.entries["t"].path == second / "z.yaml"
    assert [(n, kept.name, lost.name) for n, kept, lost in index.clashes] == [("t", "x.yaml", "y.yaml")]


def test_of_two_files_lmms_eval_takes_the_one_that_it_walks_to_last(tmp_path: Path) -> None:
    write(tmp_path, z="task: t\n", sub__t="task: t\n", t="task: u\n", u="task: u\n", v="task: u\n")
    index = build_index([tmp_path], tmp_path / "cache", "lmms_eval")
    assert index.entries["t"].path == tmp_path / "sub" / "t.yaml"
    assert index.entries["u"].path == tmp_path / "u.yaml", "one folder: the file that is called like the task"
    assert [(name, kept.name, lost.name) for name, kept, lost in index.clashes] == [
        ("u", "u.yaml", "t.yaml"), ("u", "u.yaml", "v.yaml"), ("t", "t.yaml", "z.yaml"),
    ]  # fmt: skip


def test_a_tag_does_not_hide_a_task(tmp_path: Path) -> None:
    write(tmp_path, a="task: one\ntag: two\n", b="task: two\n")
    assert build_index([tmp_path], tmp_path / "cache").entries["two"].kind == "task"


def test_broken_files_are_kept_with_their_reason(tmp_path: Path) -> None:
    write(tmp_path, a="task: [x\n", b="task: b\ninclude: nowhere\n")
    index = build_index([tmp_path], tmp_path / "cache")
    assert {path.name: why.split(":")[-1].strip()[:14] for path, why in index.unreadable}.keys() == {"a.yaml", "b.yaml"}


def test_nothing_is_read_again_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="task: one\n", b="task: two\n")
    build_index([tmp_path], tmp_path / "cache")
    read: list[str] = []
    monkeypatch.setattr(module, "read_head", lambda path: read.append(path.name) or read_head(path))
    assert build_index([tmp_path], tmp_path / "cache").names() == ["one", "two"]
    assert read == []
    (tmp_path / "a.yaml").write_text("task: other\n")
    os.utime(tmp_path / "a.yaml", ns=(1, 1))
    assert build_index([tmp_path], tmp_path / "cache").names() == ["other", "two"]
    assert read == ["a.yaml"]
    (tmp_path / "b.yaml").unlink()
    assert build_index([tmp_path], tmp_path / "cache").names() == ["other"]


def test_a_damaged_cache_is_rebuilt(tmp_path: Path) -> None:
    write(tmp_path, a="task: one\n")
    build_index([tmp_path], tmp_path / "cache")
    (file,) = (tmp_path / "cache").glob("tasks_*.json")
    for text in ("{", json.dumps({"format": -1, "heads": {}})):
        file.write_text(text)
        assert build_index([tmp_path], tmp_path / "cache").names() == ["one"]


@pytest.mark.parametrize(
    "text",
    [
        "task: plain\n", 'task: "quoted"\n', "task: 'single'  # note\n", "task: a  # b\n",
        "group: g\ntask:\n  - a\n  - b\n",
        "task: t\ntag: [a, b]\n", "task: t\ntag:\n  - a\n  - 'b c'\n", "task: 123\n", "task: yes\n",
        "task: t\ntag: null\n",
        "task: &x t\n", "description: |\n  task: inner\ntask: outer\n", '"task": odd\n', "task:\n  - a\ngroup: g\n",
        "task: t\ninclude: ../x/_default_yaml\n", "task: t\ninclude:\n  - a.yaml\n  - b\n", "task: a b\n",
    ],
)  # fmt: skip
def test_the_quick_scan_agrees_with_the_parser(text: str) -> None:
    scanned = scan_head(text)
    parsed = module._parsed_head(text, Path("f"))
    if scanned is not None:
        assert {k: v for k, v in scanned.items() if k != "task" or isinstance(v, str)} == {
            k: v for k, v in parsed.items() if k != "task" or isinstance(v, str)
        }
    assert parse_text(text, Path("f")).values


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        build_index([tmp_path / "none"])
