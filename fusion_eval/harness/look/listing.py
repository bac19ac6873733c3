"""What tasks there are: a row per name, and why a file is none."""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.harness.catalog import library, picture_library
from fusion_eval.harness.index import Entry
from fusion_eval.harness.look.shelf import Shelf

_OURS: Final = (library(), picture_library())
_WIDEST: Final = 48
_COUNTED: Final = {
    "task": "tasks",
    "python": "Python tasks",
    "group": "groups",
    "tag": "tags",
    "ignored": "ignored files",
}
_LAST: Final = ("ignored", "broken")


@dataclass(frozen=True, slots=True)
class Row:
    """A name that can be evaluated, or a file that is broken.

    Args:
        name: of the task, group or tag; of a broken file its stem.
        kind: task, python, group, tag; of a file that does not count ignored or broken.
        output_type: what the model is asked to do.
        data: data set and subset.
        file: where it stands.
        dialect: language or multimodal.
        why: it does not count.
        ours: whether it comes from the package's own library.
    """

    name: str
    kind: str
    output_type: str = ""
    data: str = ""
    file: str = ""
    dialect: str = ""
    why: str = ""
    ours: bool = False


def rows_of(shelves: Iterable[Shelf], patterns: Sequence[str] = ()) -> list[Row]:
    """Rows of all names that fit a pattern, sorted; without patterns of all, the package's own only if no others are.

    Raises:
        ConfigError: patterns that fit nothing, with the nearest names.
    """
    there = list(shelves)
    every = [row for shelf in there for row in _rows(shelf)]
    if not patterns:
        if any(root not in _OURS for shelf in there for root in shelf.roots):
            every = [row for row in every if not row.ours]
        return sorted(every, key=lambda row: (row.kind in _LAST, row.name, row.file))
    wanted: dict[Row, None] = {}
    faults = []
    for pattern in patterns:
        found = [row for row in every if fnmatch.fnmatchcase(row.name, pattern)]
        if not found:
            names = [row.name for row in every]
            hint = (
                did_you_mean(pattern, names) or "Name the task's folder in include_path, or its package in tasks_from."
            )
            faults.append(Fault("tasks", f"nothing is called '{pattern}'", do=hint))
        wanted.update(dict.fromkeys(found))
    if faults:
        raise ConfigError(*faults)
    return sorted(wanted, key=lambda row: (row.kind in _LAST, row.name, row.file))


def _rows(shelf: Shelf) -> Iterable[Row]:
    index = shelf.catalog.index
    for entry in index.entries.values():
        yield replace(_row(entry, shelf.dialect), ours=entry.root in _OURS)
    for path, why in index.unreadable:
        yield Row(path.stem, "broken", file=str(path), dialect=shelf.dialect, why=why, ours=_is_ours(path))
    for name, kept, lost in index.clashes:
        why = f"'{name}' is already defined in {kept}"
        yield Row(name, "ignored", file=str(lost), dialect=shelf.dialect, why=why, ours=_is_ours(lost))


def _is_ours(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _OURS)


def _row(entry: Entry, dialect: str) -> Row:
    kind = "python" if entry.kind == "class" else entry.kind
    file = str(entry.path) if entry.path is not None else ""
    if kind in ("group", "tag"):
        members = f"{len(entry.members)} tasks" if entry.members else ""
        return Row(entry.name, kind, data=members, file=file, dialect=dialect)
    about = entry.about
    subset = about.get("dataset_name", "")
    data = about.get("dataset_path", "") + (f" ({subset})" if subset not in ("", "null", "~") else "")
    asked = about.get("output_type", "generate_until" if kind == "task" else "")
    return Row(entry.name, kind, asked, data, file, dialect)


def listed_rows(rows: Sequence[Row]) -> str:
    """The rows as columns, broken files last with their reason, and how many of each kind there are."""
    whole = [row for row in rows if row.kind not in _LAST]
    cells = [(row.name, row.kind, row.output_type, row.data, _near(row.file)) for row in whole]
    header = ("name", "kind", "output type", "data", "file")
    widths = [min(_WIDEST, max(len(line[i]) for line in (header, *cells))) for i in range(len(header) - 1)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, (*widths, 0), strict=True)).rstrip()
             for line in (header, *cells)] if cells else []  # fmt: skip
    broken = [f"{row.kind}: {_near(row.file)}: {row.why}" for row in rows if row.kind in _LAST]
    return "\n".join([*lines, *broken, counted(rows)])


def counted(rows: Sequence[Row]) -> str:
    """How many tasks, groups and so on there are."""
    counts = Counter(row.kind for row in rows)
    parts = [f"{counts[kind]:,} {word}" for kind, word in _COUNTED.items() if counts[kind]]
    parts.append(f"{counts['broken']:,} broken files" if counts["broken"] else "no broken files")
    return ", ".join(parts)


def _near(file: str) -> str:
    """A path as one would write it here."""
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file
