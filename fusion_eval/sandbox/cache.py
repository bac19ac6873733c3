"""Verdicts kept by what decides them: program, tests, limits, Python, and this sandbox's version."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from fusion_eval.errors import Fault, OutputError
from fusion_eval.sandbox.program import Status, Verdict

VERSION = 3  # raised whenever a change of the sandbox can change a verdict
_KEPT = (Status.PASSED, Status.FAILED, Status.OUT_OF_MEMORY, Status.KILLED, Status.OPAQUE)


class VerdictCache:
    """Verdicts in memory and, given a folder, on disk.

    Timeouts stay in memory only: on disk they would outlive the machine's bad hour.
    """

    def __init__(self, folder: Path | None, level: str) -> None:
        self._memory: dict[str, Verdict] = {}
        self._folder = folder
        self._salt = f"{VERSION}|{platform.python_version()}|{platform.machine()}|{level}"
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(
                    Fault("cache", f"{folder}: {error.strerror}", "a folder that can be written")
                ) from None

    def get(self, key: str) -> Verdict | None:
        """The verdict of an equal program, if it is known."""
        if key in self._memory or self._folder is None:
            return self._memory.get(key)
        try:
            kept = json.loads(self._path(key).read_text(encoding="utf-8"))
            verdict = Verdict(**{**kept, "status": Status(kept["status"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, OSError):
            return None  # a torn or foreign file is as good as none: the program runs again and replaces it
        self._memory[key] = verdict
        return verdict

    def put(self, key: str, verdict: Verdict) -> None:
        """Keeps a verdict that says something about the program."""
        if not verdict.scored:
            return
        self._memory[key] = verdict
        if self._folder is None or verdict.status not in _KEPT or verdict.results is not None:
            return
        text = json.dumps(asdict(replace(verdict, cached=False)))
        try:
            _replace(self._path(key), text)
        except OSError as error:
            raise OutputError(
                Fault("cache", f"{self._folder}: {error.strerror}", "a folder with room that can be written")
            ) from None

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        digest = hashlib.blake2b(f"{self._salt}|{key}".encode(), digest_size=20).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"


def _replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all, whoever else writes the same one."""
    path.parent.mkdir(exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
