"""Layers are found by trying; root without its capabilities is no root."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.sandbox import level
from fusion_eval.sandbox.privilege import has_capabilities, maps_users


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("000001ffffffffff", True), ("0000000000000000", False), ("00000000a80425fb", True), ("3f", False)],
)
def test_capabilities(mask: str, expected: bool) -> None:
    assert has_capabilities(f"Name:\tx\nCapEff:\t{mask}\n") is expected
    assert has_capabilities("") is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("         0          0 4294967295\n", True),
        ("0 1000 1\n", False),
        ("0 1000 1\n1 100000 65536\n", True),
        ("", False),
    ],
)
def test_user_maps(text: str, expected: bool) -> None:
    assert maps_users(text) is expected


def test_folders_that_others_cannot_enter(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        folder.chmod(0o711)
    (tmp_path / "a").chmod(0o700)
    assert not level.readable_by_others(str(tmp_path / "a" / "b"))


def test_levels_read_as_text() -> None:
    assert str(level.Layers(True, 7, True, True)) == "bubblewrap+landlock7+seccomp+uid+rlimits"
    assert str(level.Layers(False, 0, False, False)) == "rlimits"
    assert not level.Layers(True, 7, False, True).holds
