"""One safetensors file: its header read and checked at opening, its tensors as views of a mapping of the file."""

from __future__ import annotations

import json
import math
import os
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor

from fusion_eval.errors import CheckpointError, Fault, listed
from fusion_eval.merge.checkpoint import TensorSpec
from fusion_eval.merge.disk import read_ahead

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_WORTH_ASKING: Final = 1 << 20
_LONGEST_HEADER: Final = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies in its file: bytes `begin` to `end`, counted from the start of the file."""

    spec: TensorSpec
    begin: int
    end: int


class SafetensorsFile:
    """A safetensors file, opened by reading its header only.

    Reading is thread-safe and copies nothing: the file is mapped when the first tensor is asked for, and no file handle
    stays open.

    Raises:
        CheckpointError: the file is missing, truncated, or not of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries, self.metadata, self.size = _read_header(path)
        self._bytes: Tensor | None = None
        self._lock = threading.Lock()

    def read(self, name: str) -> Tensor:
        """The tensor `name`, a view of the file that is private to this process."""
        entry = self.entries[name]
        raw = self._mapped()[entry.begin : entry.end]
        if entry.begin % entry.spec.dtype.itemsize:
            raw = raw.clone()  # the format does not promise alignment
        return raw.view(entry.spec.dtype).reshape(entry.spec.shape)

    def prefetch(self, name: str) -> None:
        """Ask the operating system, where it can, to read a tensor in the background; not worth it for small ones."""
        entry = self.entries[name]
        if entry.end - entry.begin >= _WORTH_ASKING:
            read_ahead(self.path, entry.begin, entry.end)

    def _mapped(self) -> Tensor:
        with self._lock:
            if self._bytes is None:
                found = _size(self.path)
                if found != self.size:
                    raise CheckpointError(
                        Fault(str(self.path), f"changed since it was opened: {found} bytes", f"{self.size} bytes")
                    )
                storage = torch.UntypedStorage.from_file(str(self.path), shared=False, nbytes=self.size)
                self._bytes = torch.empty(0, dtype=torch.uint8).set_(cast(torch.UntypedStorage, storage))
            return self._bytes


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise CheckpointError(Fault(str(path), _reason(error), "a readable file")) from error


def _reason(error: OSError) -> str:
    return f"cannot be read ({error.strerror or error})"


def _read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Entries in the order of their bytes, the metadata, and the size of the file."""
    size = _size(path)
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            text = file.read(length) if 0 <= length <= min(_LONGEST_HEADER, size - 8) else b""
    except OSError as error:
        raise CheckpointError(Fault(str(path), _reason(error), "a readable file")) from error
    if length < 0 or length > _LONGEST_HEADER or len(text) < length:
        found = "empty file" if not start else f"{size} bytes, fewer than its header needs, or another format"
        raise CheckpointError(_not_whole(path, found))
    header = _parsed(path, text)
    metadata = header.pop("__metadata__", {})
    entries = {name: _entry(path, name, fields, 8 + length) for name, fields in header.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    end = max((entry.end for entry in entries.values()), default=8 + length)
    if end != size:
        raise CheckpointError(_not_whole(path, f"{size} bytes where its header promises {end}"))
    return entries, metadata, size


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CheckpointError(_not_whole(path, "a header that is not JSON")) from error
    if not isinstance(header, dict):
        raise CheckpointError(_not_whole(path, "a header that is not a JSON object"))
    return header


def _entry(path: Path, name: str, fields: Any, start: int) -> Entry:
    try:
        dtype, shape = DTYPES.get(fields["dtype"]), tuple(int(size) for size in fields["shape"])
        begin, end = (int(offset) for offset in fields["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(_not_whole(path, f"a malformed header entry for tensor '{name}'")) from error
    if dtype is None:
        raise CheckpointError(
            Fault(f"{path}, tensor '{name}'", f"dtype {fields['dtype']}", f"one of {listed(list(DTYPES), len(DTYPES))}")
        )
    if begin < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(_not_whole(path, f"offsets that do not fit the shape of tensor '{name}'"))
    return Entry(TensorSpec(shape, dtype), start + begin, start + end)


def _not_whole(path: Path, found: str) -> Fault:
    return Fault(str(path), found, "a whole safetensors file", "Copy or download the file again.")
