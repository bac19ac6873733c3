"""Where YAML is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fusion_eval import config_path
from fusion_eval.errors import ConfigError


def test_the_checkout_s_own_yaml(repo_root: Path) -> None:
    assert config_path.config_dir() == repo_root / "config"


def test_the_wheel_s_yaml_counts_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fusion_eval"
    monkeypatch.setattr(config_path, "_PACKAGE", package)
    with pytest.raises(ConfigError, match="no config folder with"):
        config_path.config_dir()
    for folder in (tmp_path / "config", package / "config"):
        folder.mkdir(parents=True)
        (folder / "fusion_eval.yaml").write_text("")
        assert config_path.config_dir() == folder


def test_user_folders_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "config"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(config_path.VARIABLE, "b:a:")
    names = [(name, folder.name) for name, folder in config_path.user_folders()]
    assert names == [(config_path.VARIABLE, "b"), (config_path.VARIABLE, "a"), ("./config", "config")]


def test_the_package_s_own_folder_is_not_the_user_s(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo_root)
    monkeypatch.delenv(config_path.VARIABLE, raising=False)
    assert config_path.user_folders() == []


def test_every_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "locked")
    monkeypatch.setenv(config_path.VARIABLE, "absent:file:locked")
    with pytest.raises(ConfigError) as caught:
        config_path.user_folders()
    found = [fault.found for fault in caught.value.faults]
    assert found == [f"no folder {tmp_path}/absent", f"{tmp_path}/file is a file", f"{tmp_path}/locked cannot be read"]


def test_shadowed_files(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "ties.yaml").write_text("")
    (tmp_path / "method" / "of_mine.yaml").write_text("")
    shutil.copy(config_path.config_dir() / "method" / "dare.yaml", tmp_path / "method")  # the same: no loss
    assert config_path.shadowed(tmp_path) == [tmp_path / "method" / "ties.yaml"]


def test_the_plugin_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra._internal.config_search_path_impl import ConfigSearchPathImpl

    (tmp_path / "config").mkdir()
    monkeypatch.chdir(tmp_path)
    path: ConfigSearchPath = ConfigSearchPathImpl()
    path.append("main", "file:///package")
    config_path.UserConfigs().manipulate_search_path(path)
    assert [item.path for item in path.get_path()] == ["file:///package", f"file://{tmp_path / 'config'}"]


def test_register_twice_is_register_once() -> None:
    config_path.register()
    config_path.register()
    assert Plugins.instance().discover(SearchPathPlugin).count(config_path.UserConfigs) == 1
