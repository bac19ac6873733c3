"""Scratch folders are empty between samples, whatever a sample left in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusion_eval.sandbox.jail import scratch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    scratch.tidy(str(tmp_path), {"a": 0, "b": 0})
    return tmp_path


def test_folders_are_made_once(root: Path) -> None:
    assert sorted(path.name for path in root.iterdir()) == ["a", "b"]
    assert scratch.tidy(str(root), {"a": 0, "b": 0}) is False


def test_deep_trees_links_and_rights(root: Path) -> None:
    place = os.getcwd()
    try:
        os.chdir(root / "a")
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(place)
    (root / "b" / "link").symlink_to("/")
    (root / "b" / "inner").mkdir()
    (root / "b" / "inner" / "file").write_text("x")
    (root / "b" / "inner").chmod(0)
    (root / "stray").write_text("x")
    scratch.tidy(str(root), {"a": 0, "b": 0})
    assert [str(path.relative_to(root)) for path in sorted(root.rglob("*"))] == ["a", "b"]


def test_a_folder_that_was_replaced_is_made_anew(root: Path) -> None:
    (root / "a").rmdir()
    (root / "a").write_text("x")
    assert scratch.tidy(str(root), {"a": 0, "b": 0}) is True
    assert (root / "a").is_dir()
    scratch.discard(str(root))
    assert not root.exists()
