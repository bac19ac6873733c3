"""Writing files so that a reader sees the old content or the new one, never half of it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fusion_eval.errors import Fault, OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def write_text(path: Path, text: str) -> None:
    """Replace a file's content at once, making its folder where needed.

    Raises:
        OutputError: the place cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise OutputError(
            Fault(str(path), f"cannot be written ({error.strerror})", do="Choose another output.")
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file's content at once; numbers that are not finite are refused."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs out of an existing folder meanwhile; the hold ends with the process, however it ends.

    Raises:
        OutputError: another run holds the folder.
    """
    if fcntl is None:  # no such locks on this system
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            do = "Wait for it, or choose another output."
            raise OutputError(Fault(str(folder), "another run writes there at this moment", do=do)) from error
        yield
    finally:
        os.close(descriptor)
