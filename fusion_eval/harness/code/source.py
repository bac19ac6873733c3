"""Where documents come from: local files with the hub's field names, or the hub."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusion_eval.errors import DataError, Fault, listed, missing_dependency

_ROOT: ContextVar[Path | None] = ContextVar("data_root", default=None)
_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")


@dataclass(frozen=True, slots=True)
class Source:
    """One data set.

    Args:
        path: its name on the hub.
        name: its configuration there.
        split: the part that is evaluated.
        files: names of local files that hold it, without suffix, best first.
        fields: what every document must have.
    """

    path: str
    name: str | None = None
    split: str = "test"
    files: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


def current_root() -> Path | None:
    """The folder of local data in force."""
    return _ROOT.get()


@contextmanager
def data_root(folder: str | Path | None) -> Iterator[None]:
    """Looks for data below a folder instead of on the hub."""
    token = _ROOT.set(None if folder is None else Path(folder))
    try:
        yield
    finally:
        _ROOT.reset(token)


def local_file(source: Source, root: Path | None) -> Path | None:
    """The first file below the root that holds the data set."""
    if root is None:
        return None
    names = [*source.files, source.path.replace("/", "__"), source.path.rpartition("/")[2]]
    for name in filter(None, names):
        for suffix in _SUFFIXES:
            if (path := root / f"{name}{suffix}").is_file():
                return path
    return None


def documents(source: Source, root: Path | None) -> list[dict[str, Any]]:
    """The documents of a data set's split, with every field it must have.

    Raises:
        DataError: no file and no hub, an unreadable file, no documents, or documents without the fields.
    """
    path = local_file(source, root)
    found = read(path) if path else list(load(source, root)[source.split])
    where = str(path or source.path)
    if not found:
        raise DataError(Fault(where, "holds no documents", "at least one"))
    missing = [field for field in source.fields if any(field not in doc for doc in found)]
    if missing:
        has = listed(sorted(found[0]), 12)
        raise DataError(Fault(where, f"documents with the fields {has}", f"the field {' and '.join(missing)} in each"))
    return [dict(doc) for doc in found]


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON or JSON-lines file, compressed or not; raises DataError with the line."""
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            if ".json" in path.suffixes:
                return list(json.load(file))
            records = []
            for line in file:
                number += 1
                if line.strip():
                    records.append(json.loads(line))
            return records
    except (ValueError, OSError, EOFError) as error:
        raise DataError(Fault(f"{path}, line {number}" if number else str(path), str(error), "JSON")) from None


def load(source: Source, root: Path | None) -> Any:
    """The data set's splits by name, from a local file or the hub.

    Raises:
        DataError: no file below the root, or a hub that does not answer.
    """
    path = local_file(source, root)
    if path:
        return {source.split: read(path)}
    if root is not None:
        wanted = listed([f"{name}.jsonl" for name in (*source.files, source.path.rpartition("/")[2])])
        raise DataError(
            Fault(f"data_root {root}", f"no file of {source.path}", wanted, "Put it there, or unset data_root.")
        )
    try:
        import datasets
    except ImportError:
        raise missing_dependency("datasets", "huggingface", f"data set {source.path}") from None
    try:
        return datasets.load_dataset(source.path, source.name)
    except Exception as error:
        raise DataError(
            Fault(f"data set {source.path}", f"{type(error).__name__}: {str(error)[:300]}", "an answer of the hub",
                  "Check the name and the connection, or give data_root with local files.")
        ) from error  # fmt: skip


def window(documents_: Sequence[Any], limit: int | None, start: int = 0) -> list[Any]:
    """The documents from `start` on, at most `limit` of them."""
    return list(documents_[start : None if limit is None else start + limit])
