"""One training run of a study: a method with a seed, its folder, and what is known of how it ended."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusion_eval.errors import Fault, FusionEvalError, OutputError
from fusion_eval.program.compare.identity import digest, lasting_source
from fusion_eval.program.launch import seed_everything
from fusion_eval.report.files import write_json
from fusion_eval.report.receipt import git_state, versions

COMPLETED, FAILED = "completed", "failed"
_RECORD = "cell.json"
_WEIGHTS = "model.pt"

Train = Callable[..., Any]
"""(seed), or (seed, folder) -> a checkpoint's path, or a module whose weights are then kept."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A method with a seed."""

    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.method}, seed {self.seed}"

    @property
    def folder_name(self) -> str:
        """The cell's folder inside a study."""
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.method)
        return f"{safe}__seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Record:
    """How a cell ended.

    Args:
        method: the cell's method.
        seed: the cell's seed.
        status: completed or failed.
        checkpoint: path of the weights, relative to the cell's folder where they lie in it.
        checkpoint_hash: of the file's, or the folder's, bytes.
        code: hash of the training function with its arguments.
        error: what a failed cell failed with.
        seconds: wall time.
        attempts: how often it was run.
        created: when it ended.
        receipt: versions, git.
    """

    method: str
    seed: int
    status: str
    checkpoint: str = ""
    checkpoint_hash: str = ""
    code: str = ""
    error: str = ""
    seconds: float = 0.0
    attempts: int = 1
    created: str = ""
    receipt: dict[str, Any] | None = None


def read_record(folder: Path) -> Record | None:
    """The record in a cell's folder, or None where there is none that can be read."""
    try:
        return Record(**json.loads((folder / _RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_finished(folder: Path, record: Record | None, train: Train) -> bool:
    """Whether a cell need not be run again: it completed with this function, and its weights are still there."""
    if record is None or record.status != COMPLETED or record.code != code_of(train):
        return False
    path = checkpoint_path(folder, record)
    return path.exists() and file_hash(path) == record.checkpoint_hash


def checkpoint_path(folder: Path, record: Record) -> Path:
    """Where a cell's weights are."""
    return folder / record.checkpoint


def make_folder(folder: Path) -> None:
    """Make a folder of a study.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            Fault(str(folder), f"cannot be written ({error.strerror})", do="Choose another folder.")
        ) from error


def run_cell(cell: Cell, folder: Path, train: Train) -> Record:
    """Train a cell, and record how it ended; what the training function raises is recorded, not raised.

    Raises:
        OutputError: the folder cannot be written.
    """
    before = read_record(folder)
    start, attempts = time.perf_counter(), 1 if before is None else before.attempts + 1
    try:
        seed_everything(cell.seed)
        checkpoint = _kept(_called(train, cell.seed, folder), folder)
        result = {
            "status": COMPLETED,
            "checkpoint": _relative(checkpoint, folder),
            "checkpoint_hash": file_hash(checkpoint),
        }
    except Exception as error:  # noqa: BLE001 (a training function may raise anything; the other cells go on)
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        result = {"status": FAILED, "error": f"{type(error).__name__}: {error}"}
    record = Record(
        cell.method,
        cell.seed,
        code=code_of(train),
        seconds=round(time.perf_counter() - start, 3),
        attempts=attempts,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        receipt={"versions": versions(), "git": git_state(Path.cwd())},
        **result,
    )
    write_json(folder / _RECORD, asdict(record))
    return record


def _called(train: Train, seed: int, folder: Path) -> Any:
    takes_folder = "folder" in inspect.signature(train).parameters
    return train(seed, folder=folder) if takes_folder else train(seed)


def _kept(given: Any, folder: Path) -> Path:
    """The checkpoint's path; the weights of a module are written first."""
    if isinstance(given, nn.Module):
        path = folder / _WEIGHTS
        torch.save(given.state_dict(), path)
        return path
    if not isinstance(given, str | Path):
        found = f"a {type(given).__name__}"
        raise OutputError(Fault("the training function", f"it returned {found}", "a checkpoint's path, or a module"))
    path = Path(given)
    path = path if path.is_absolute() or path.exists() else folder / path
    if not path.exists():
        raise OutputError(Fault("the training function", f"it returned {given}, which does not exist", "a checkpoint"))
    return path.resolve()


def _relative(path: Path, folder: Path) -> str:
    root = folder.resolve()
    return str(path.resolve().relative_to(root)) if path.resolve().is_relative_to(root) else str(path)


def code_of(train: Train) -> str:
    """A hash of the training function's source, of its arguments and of what it says it depends on."""
    return digest(lasting_source(train))


def file_hash(path: Path) -> str:
    """A hash of a file's bytes, or of a folder's files.

    Raises:
        FusionEvalError: it cannot be read.
    """
    state = hashlib.blake2b(digest_size=16)
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    try:
        for file in files:
            state.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 22):
                    state.update(block)
    except OSError as error:
        raise FusionEvalError(Fault(str(path), f"cannot be read ({error.strerror})", "a checkpoint")) from error
    return f"blake2b:{state.hexdigest()}"
