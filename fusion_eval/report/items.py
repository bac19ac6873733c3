"""Per-item predictions of a model on a task, as one compressed numpy file."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fusion_eval.errors import Fault, OutputError
from fusion_eval.report.values import ModelResult

_COMPRESSED_BYTES = 16 << 20


def items_path(folder: Path, model: str, task: str) -> Path:
    """Where the items of a model on a task lie: `folder/model/task.npz`."""
    return folder / _safe(model) / f"{_safe(task)}.npz"


def write_items(folder: Path, model: ModelResult) -> None:
    """Write each task's columns (`id`, `pred`, `target`, scores), each file at once.

    Raises:
        OutputError: the folder cannot be written.
    """
    for task in model.tasks:
        columns: dict[str, Any] = {
            name: np.asarray(column) for name, column in task.items.items() if not isinstance(column, list)
        }
        if not columns:
            continue
        path = items_path(folder, model.name, task.name)
        temporary = path.with_suffix(f".{os.getpid()}.tmp.npz")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(temporary, columns)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise OutputError(
                Fault(str(path), f"cannot be written ({error.strerror})", do="Choose another output.")
            ) from error


def _write(path: Path, columns: dict[str, Any]) -> None:
    """Large columns are not compressed, which takes minutes and gains little."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, column in columns.items():
            kind = zipfile.ZIP_DEFLATED if column.nbytes <= _COMPRESSED_BYTES else zipfile.ZIP_STORED
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = kind
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, column, allow_pickle=False)


def read_items(folder: Path, model: str, task: str) -> dict[str, Any]:
    """The columns that `write_items` wrote."""
    with np.load(items_path(folder, model, task), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _safe(name: str) -> str:
    plain = re.sub(r"[^\w.\-]+", "_", name).lstrip(".") or "_"
    return plain if plain == name else f"{plain}-{zlib.crc32(name.encode()):08x}"  # two names never share a file
