from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError
from fusion_eval.harness.yaml_file import FunctionRef, YamlReader, function_refs, parse_text


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_function_stays_a_reference_with_its_line(tmp_path: Path) -> None:
    file = parse_text("task: a\ndoc_to_text: !function utils.text\n", tmp_path / "a.yaml")
    assert file.values["doc_to_text"] == FunctionRef("utils.text", tmp_path / "a.yaml", 2)
    assert file.where("doc_to_text").endswith("a.yaml:2")


def test_yaml_1_1_words_are_booleans() -> None:
    assert parse_text("a: yes\nb: off\nc: 'no'\n", Path("x")).values == {"a": True, "b": False, "c": "no"}


def test_includes_lie_below_own_keys_and_later_ones_win(tmp_path: Path) -> None:
    write(tmp_path, one="a: 1\nb: 1\nc: 1\ntask_list: [x]\n", two="b: 2\nc: 2\n", top="include: [one, two]\nc: 3\n")
    file = YamlReader().read(tmp_path / "top")
    assert file.values == {"a": 1, "b": 2, "c": 3}
    assert [file.lines[key][0].name for key in "abc"] == ["one", "two", "top"]


def test_a_diamond_of_includes_is_no_circle(tmp_path: Path) -> None:
    write(
        tmp_path, base="a: 1\n", left="include: base\n", right="include: base\nb: 2\n", top="include: [left, right]\n"
    )
    assert YamlReader().read(tmp_path / "top").values == {"a": 1, "b": 2}


def test_a_circle_and_a_missing_include_are_told(tmp_path: Path) -> None:
    write(tmp_path, a="include: b\n", b="include: a\n", c="x: 1\ninclude: nowhere\n")
    with pytest.raises(ConfigError, match=r"includes itself: a -> b -> a"):
        YamlReader().read(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"c:2: includes nowhere, which does not exist"):
        YamlReader().read(tmp_path / "c")


def test_duplicate_keys_are_noted_and_the_last_counts() -> None:
    file = parse_text("a: 1\nb: 2\na: 3\n", Path("f.yaml"))
    assert file.values["a"] == 3
    assert file.duplicates == [(Path("f.yaml"), 3, "a")]


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: b: c\n", r"f\.yaml:1: is not valid YAML"), ("- a\n", "holds a list"), ("a: [1\nb: 2\n", r"f\.yaml:2")],
)
def test_broken_files_are_told_with_their_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_text(text, Path("f.yaml"))


def test_readers_give_copies(tmp_path: Path) -> None:
    write(tmp_path, a="x: [1]\n")
    reader = YamlReader()
    reader.read(tmp_path / "a").values["x"].append(2)
    assert reader.read(tmp_path / "a").values["x"] == [1]


def test_references_are_found_at_any_depth() -> None:
    text = "a: [{b: !function m.one}]\nc: !function m.two\n"
    assert [ref.target for ref in function_refs(parse_text(text, Path("f")).values)] == ["m.one", "m.two"]
