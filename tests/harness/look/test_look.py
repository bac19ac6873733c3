from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.errors import ConfigError, FusionEvalError
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.look.checking import checked, summary
from fusion_eval.harness.look.listing import listed_rows, rows_of
from fusion_eval.harness.look.shelf import Shelf, dialect_of, shelves
from fusion_eval.harness.look.showing import Shown, shown


def of(folder: Path) -> list[Shelf]:
    return shelves([str(folder / "pictures"), str(folder / "words")])


def test_folders_are_told_apart_by_their_keys(folder: Path, tmp_path: Path) -> None:
    assert [dialect_of(folder / name) for name in ("pictures", "words")] == ["multimodal", "language"]
    tree = tmp_path / "lmms_eval" / "tasks" / "a"
    tree.mkdir(parents=True)
    assert dialect_of(tree) == "multimodal"
    with pytest.raises(ConfigError, match="no_such is not a folder"):
        shelves([str(folder / "no_such")])
    with pytest.raises(ConfigError, match="'no_such_package' is not installed"):
        shelves(tasks_from=["no_such_package"])


def test_lists_say_kind_type_data_and_file(folder: Path) -> None:
    rows = {row.name: row for row in rows_of(of(folder))}
    assert (rows["color"].kind, rows["color"].output_type, rows["color"].data) == ("task", "generate_until", "parquet")
    assert rows["color"].file == str(folder / "pictures" / "color.yaml")
    assert rows["pictures"].kind == "group"
    assert rows["letters"].kind == "tag"
    assert "is not valid YAML" in rows["broken"].why
    assert not [name for name in rows if name.startswith("fe_")]
    assert all(row.ours for row in rows_of(shelves()))
    assert [row.name for row in rows_of(of(folder), ["fe_pope"])] == ["fe_pope"]
    text = listed_rows([rows["color"], rows["broken"]]).splitlines()
    assert text[0].split() == ["name", "kind", "output", "type", "data", "file"]
    assert text[2].startswith("broken: ")
    assert text[3] == "1 tasks, 1 broken files"


def test_patterns_choose_rows(folder: Path) -> None:
    assert [row.name for row in rows_of(of(folder), ["colo?", "spell"])] == ["color", "spell"]
    with pytest.raises(ConfigError, match=r"nothing is called 'colr'\. Did you mean 'color'"):
        rows_of(of(folder), ["colr"])


def test_checks_find_faults_without_running_anything(folder: Path) -> None:
    (folder / "pictures" / "utils.py").write_text((folder / "pictures" / "utils.py").read_text() + "print(1 / 0)\n")
    there = of(folder)
    found = checked(there, rows_of(there, ["color", "odd", "needy", "spell", "broken"]))
    said = summary(found)
    for part in (
        "odd: ", "has no 'txt'. Did you mean 'text'", "Did you mean 'doc_to_visual'",
        "needs the package 'no_such_package', which is not installed. Run: pip install no_such_package",
        "imports no_such_metric from lmms_eval.api.metrics, which is not supplied",
        "is not valid YAML", "packages that tasks lack (how many tasks): no_such_package (1)",
    ):  # fmt: skip
        assert part in said, part
    assert set(found.by_name) == {"odd", "needy", "broken"}
    run = checked(there, rows_of(there, ["color"]), run_python=True)
    assert "utils.py:7 fails when imported: ZeroDivisionError: division by zero" in summary(run)


def test_checks_say_which_data_are_lacking(folder: Path) -> None:
    there = of(folder)
    rows = rows_of(there, ["color", "spell", "fe_pope"])
    found = checked(there, rows, data=DataSource(folder))
    assert set(found.by_name) == {"fe_pope"}
    (folder / "pictures" / "data.parquet").unlink()
    assert set(checked(there, rows, data=DataSource(folder)).by_name) == {"fe_pope", "color"}


def test_a_document_is_shown_with_its_picture(folder: Path) -> None:
    pictures = of(folder)[1]
    text = shown(pictures, ["color"], Shown(1, data=DataSource()))
    for part in (
        "task: color (generate_until)", "document 1 of 2", "model: none named, so default", "prompt (1 media):",
        "<image 6 x 4 RGB, ", "| Which color? Short.", '"max_new_tokens": 4', "target: 'blue'",
    ):  # fmt: skip
        assert part in text, part
    assert "| Which color? One word." in shown(pictures, ["color"], Shown(0, ("mine", "llava"), data=DataSource()))
    with pytest.raises(FusionEvalError, match="0 to 1"):
        shown(pictures, ["color"], Shown(2, data=DataSource()))


def test_a_document_of_a_language_task_is_shown(folder: Path) -> None:
    text = shown(of(folder)[0], ["spell"], Shown(1, num_fewshot=1, data=DataSource()))
    assert "| Spell ab: a b" in text
    assert "| Spell cd:" in text
    assert "target: 'c d'" in text
