from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.cache import cache_folder
from fusion_eval.errors import OutputError


def test_the_first_that_is_set_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "FUSION_EVAL_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert cache_folder() == tmp_path / "FUSION_EVAL_CACHE"
    monkeypatch.delenv("FUSION_EVAL_CACHE")
    assert cache_folder() == tmp_path / "XDG_CACHE_HOME" / "fusion_eval"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "HOME" / ".cache" / "fusion_eval"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "FUSION_EVAL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OutputError, match=r"FUSION_EVAL_CACHE: not set, .*Set FUSION_EVAL_CACHE to one"):
        cache_folder()
