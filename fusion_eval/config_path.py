"""Where the YAML lives: the package's own folder first, then the folders that the user has."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fusion_eval.errors import ConfigError, Fault

ROOT = "fusion_eval"
VARIABLE = "FUSION_EVAL_CONFIG_PATH"
_PACKAGE = Path(__file__).resolve().parent


def config_dir() -> Path:
    """The package's YAML: inside an installed package, beside it in a checkout.

    Raises:
        ConfigError: the installation has lost it.
    """
    for folder in (_PACKAGE / "config", _PACKAGE.parent / "config"):
        if (folder / f"{ROOT}.yaml").is_file():
            return folder
    raise ConfigError(
        Fault(
            str(_PACKAGE), f"no config folder with a {ROOT}.yaml inside or beside it", do="Install fusion_eval again."
        )
    )


def user_folders() -> list[tuple[str, Path]]:
    """The user's folders, each with where it was named: `FUSION_EVAL_CONFIG_PATH` in order, then `./config`.

    Raises:
        ConfigError: listing the folders that cannot be read.
    """
    listed = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    named = [(VARIABLE, folder.expanduser().resolve()) for folder in listed]
    local = Path.cwd() / "config"
    if local.is_dir() and local.resolve() != config_dir().resolve():
        named.append(("./config", local))
    faults = [fault for name, folder in named for fault in _unreadable(name, folder)]
    if faults:
        raise ConfigError(*faults)
    return named


def _unreadable(name: str, folder: Path) -> Iterator[Fault]:
    if not folder.exists():
        yield Fault(name, f"no folder {folder}", do="Correct the path or remove it.")
    elif not folder.is_dir():
        yield Fault(name, f"{folder} is a file", "a folder with one subfolder per group (method, taskpool, ...)")
    elif not os.access(folder, os.R_OK | os.X_OK):
        yield Fault(name, f"{folder} cannot be read", do="Give yourself read permission.")


def shadowed(folder: Path) -> list[Path]:
    """The files of a user's folder that are never read, since the package has another of the same group and name."""
    own = config_dir()
    pairs = ((file, folder / file.relative_to(own)) for file in sorted(own.rglob("*.yaml")))
    return [theirs for file, theirs in pairs if theirs.is_file() and not filecmp.cmp(file, theirs, shallow=False)]


class UserConfigs(SearchPathPlugin):
    """Appends the user's folders to Hydra's search path: they add names, and replace none of the package's."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append what `user_folders` finds."""
        for name, folder in user_folders():
            search_path.append(name, f"file://{folder}")


def register() -> None:
    """Make Hydra look into the user's folders; a second call changes nothing."""
    if UserConfigs not in Plugins.instance().discover(SearchPathPlugin):
        Plugins.instance().register(UserConfigs)
