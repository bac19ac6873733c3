"""Columns that are too large for memory, kept in temporary files that no longer have a name.

A file is unlinked as soon as it is open, so that nothing stays behind, however the process ends. Its pages are read
through a mapping: the system drops them when memory is short. `TMPDIR` says where the files lie.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.evaluation.rows import Column, Rows

SPILL_BYTES = 64 << 20
"""Columns of more bytes lie in a file."""

PIECE_BYTES = 16 << 20
"""Large columns are read, and sent between processes, in pieces of about so many bytes."""


class ColumnFile:
    """A column that grows in a file.

    Args:
        like: a tensor (n, ...) of the column's type and shape per item.
    """

    def __init__(self, like: Tensor) -> None:
        self.dtype, self.shape = like.dtype, tuple(like.shape[1:])
        self.items = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="fusion_eval_", buffering=0)  # noqa: SIM115 (open as long as the column)

    def __del__(self) -> None:
        self._file.close()

    def fits(self, column: Column) -> bool:
        """Whether a column can be added."""
        return isinstance(column, Tensor) and column.dtype == self.dtype and tuple(column.shape[1:]) == self.shape

    def add(self, column: Tensor) -> None:
        """Append items.

        Raises:
            EvaluationError: the file cannot be written.
        """
        data = memoryview(column.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        try:
            while len(data):
                data = data[self._file.write(data) :]
        except OSError as error:
            where, do = tempfile.gettempdir(), "Set TMPDIR to a folder with room, or evaluate fewer items."
            found = f"large outputs cannot be kept there ({error.strerror})"
            raise EvaluationError(Fault(where, found, "room for them", do)) from error
        self.items += len(column)

    def tensor(self) -> Tensor:
        """All items, mapped; changes stay in memory. Nothing can be added any more."""
        if not self.items:
            return torch.empty((0, *self.shape), dtype=self.dtype)
        mapped: Any = np.memmap(self._file, dtype=np.uint8, mode="c")
        self._file.close()
        return torch.from_numpy(mapped).view(self.dtype).reshape(self.items, *self.shape)


class GrowingRows:
    """Rows that come in parts, in the order of their ids; large columns go to files."""

    def __init__(self) -> None:
        self.parts: list[Rows] = []
        self.files: dict[str, ColumnFile] = {}
        self.sizes: dict[str, int] = {}

    def add(self, rows: Rows) -> None:
        """Add a part."""
        self.parts.append(rows)
        for name, column in list(rows.columns.items()):
            if isinstance(column, Tensor):
                self.sizes[name] = self.sizes.get(name, 0) + column.nbytes
            if name in self.files or self.sizes.get(name, 0) > SPILL_BYTES:
                self._spill(name)

    def rows(self) -> Rows:
        """All parts as one."""
        whole = Rows.join(self.parts)
        return Rows(whole.ids, {**whole.columns, **{name: file.tensor() for name, file in self.files.items()}})

    def _spill(self, name: str) -> None:
        """Move what the parts hold of a column into its file, unless its shape changes from item to item."""
        waiting = [part.columns[name] for part in self.parts if name in part.columns]
        first = waiting[0]
        if name not in self.files and isinstance(first, Tensor):
            self.files[name] = ColumnFile(first)
        file = self.files.get(name)
        if file is None or not all(map(file.fits, waiting)):
            self._keep_in_memory(name)
            return
        for part in self.parts:
            column = part.columns.pop(name, None)
            if isinstance(column, Tensor):
                file.add(column)

    def _keep_in_memory(self, name: str) -> None:
        file = self.files.pop(name, None)
        self.sizes[name] = -(1 << 62)
        if file is None or not file.items:
            return
        start, kept = 0, file.tensor()
        for part in self.parts:
            if name not in part.columns:
                part.columns[name] = kept[start : start + len(part)]
                start += len(part)


def give_back_memory() -> None:
    """Return what is free to the system; glibc keeps it, in holes that large outputs do not fit into again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def pieces(column: Tensor, limit: int = SPILL_BYTES) -> Sequence[slice]:
    """The whole column where it is small, else runs of items of about `PIECE_BYTES`."""
    items = len(column)
    if column.nbytes <= limit or not items:
        return [slice(0, items)]
    step = max(1, PIECE_BYTES * items // column.nbytes)
    return [slice(start, min(start + step, items)) for start in range(0, items, step)]
