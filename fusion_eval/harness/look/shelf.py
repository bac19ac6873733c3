"""Task folders side by side, each read under the rules of the peer that its files follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.catalog import TaskCatalog, library, peer_tasks, picture_library
from fusion_eval.harness.multimodal.dialect import EXTRA_KEYS
from fusion_eval.harness.yaml_file import Peer

DIALECTS: Final[Mapping[str, Peer]] = {"language": "lm_eval", "multimodal": "lmms_eval"}
_TELLING: Final = re.compile(rf"^(?:{'|'.join(sorted(EXTRA_KEYS))})[ \t]*:", re.M)
_READ: Final = 400


@dataclass(frozen=True, slots=True)
class Shelf:
    """Folders of one dialect.

    Args:
        dialect: language or multimodal.
        roots: the folders, later ones override earlier ones.
        catalog: their tasks.
    """

    dialect: str
    roots: tuple[Path, ...]
    catalog: TaskCatalog


def shelves(
    include_path: Sequence[str] = (), tasks_from: Sequence[str] = (), dialect: str | None = None,
    metadata: Mapping[str, Any] | None = None, cache: Path | None = None,
) -> list[Shelf]:  # fmt: skip
    """The folders by dialect, the package's own library of each first.

    Args:
        include_path: folders.
        tasks_from: installed packages with a `tasks` folder; they are not imported.
        dialect: that of every folder; None to tell from the files.
        metadata: merged into every task's metadata.
        cache: folder of the index cache.

    Raises:
        ConfigError: folders or packages that are not there, all at once.
    """
    found, faults = _folders(include_path, tasks_from)
    if dialect is not None and dialect not in DIALECTS:
        faults.append(Fault("dialect", repr(dialect), f"one of {', '.join(DIALECTS)}"))
    if faults:
        raise ConfigError(*faults)
    by_dialect: dict[str, list[Path]] = {"language": [library()], "multimodal": [picture_library()]}
    for folder in found:
        by_dialect[dialect or dialect_of(folder)].append(folder)
    made = []
    for name, roots in by_dialect.items():
        there = [root for root in roots if root.is_dir()]
        extra = EXTRA_KEYS if name == "multimodal" else ()
        made.append(Shelf(name, tuple(there), TaskCatalog(there, cache, metadata, extra, DIALECTS[name])))
    return made


def _folders(include_path: Sequence[str], tasks_from: Sequence[str]) -> tuple[list[Path], list[Fault]]:
    found: list[Path] = []
    faults: list[Fault] = []
    for package in tasks_from:
        try:
            found.append(peer_tasks(package))
        except ConfigError as error:
            faults += error.faults
    for name in include_path:
        folder = Path(name).expanduser()
        if folder.is_dir():
            found.append(folder)
        else:
            faults.append(Fault("include_path", f"{name} is not a folder", "a folder with task files"))
    return found, faults


def dialect_of(folder: Path) -> str:
    """The dialect of a folder: that of the tree it lies in, else multimodal where a file has a key of that dialect."""
    parts = folder.resolve().parts
    for dialect, package in DIALECTS.items():
        if any(parts[i : i + 2] == (package, "tasks") for i in range(len(parts))):
            return dialect
    for number, path in enumerate(_task_files(folder)):
        if number == _READ:
            break
        if _TELLING.search(path.read_text(encoding="utf-8", errors="replace")):
            return "multimodal"
    return "language"


def _task_files(folder: Path) -> Iterator[Path]:
    """Task files and templates without an ending, which as a rule are called `..._yaml`."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (path.suffix in (".yaml", ".yml") or path.name.endswith("_yaml")):
            yield path
