"""Rows of evaluations that were made before, by what they depend on: the model, the data, the task.

Comparing again, with other tests or other metrics of the same rows, then runs no model.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import Fault, OutputError
from fusion_eval.evaluation.loop import Batches
from fusion_eval.evaluation.rows import Rows
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.log import get_rankzero_logger
from fusion_eval.program.compare.identity import Unknown, digest, identity, source_of
from fusion_eval.program.compare.receipt import metric_text
from fusion_eval.version import __version__

log = get_rankzero_logger(__name__)

SCHEMA = 1


class RowCache:
    """A folder of rows, one file per model on one data set and task.

    Args:
        folder: where the files are.
        data_key: what the data are.
        task_key: what is kept of every item.
    """

    def __init__(self, folder: Path, data_key: str, task_key: str) -> None:
        self.folder, self.data_key, self.task_key = folder, data_key, task_key

    def path(self, model_key: str) -> Path:
        """The file of a model's rows."""
        return self.folder / f"{digest(str(SCHEMA), model_key, self.data_key, self.task_key)}.pt"

    def read(self, model_key: str) -> Rows | None:
        """The rows of a model, or None where they are not there or cannot be read."""
        path = self.path(model_key)
        if not path.is_file():
            return None
        try:
            stored = torch.load(path, weights_only=True, mmap=True)
            return Rows(stored["ids"], stored["columns"])
        except (
            OSError,
            RuntimeError,
            KeyError,
            ValueError,
            EOFError,
            UnpicklingError,
        ):  # a damaged file is evaluated again
            return None

    def write(self, model_key: str, rows: Rows) -> None:
        """Keep a model's rows, whole or not at all; rows of objects that torch's safe reader refuses are not kept.

        Raises:
            OutputError: the folder cannot be written.
        """
        if not all(is_plain(column) for column in rows.columns.values()):
            return
        path = self.path(model_key)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"ids": rows.ids.clone(), "columns": copied(rows.columns)}, temporary)
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise OutputError(Fault(str(path), f"cannot be written ({error.strerror})", "a writable folder")) from error


def is_plain(value: Any) -> bool:
    """Whether a value is made of tensors, numbers, texts and containers of them."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(entry) for entry in value)
    return value is None or isinstance(value, Tensor | str | int | float | bool)


def copied(value: Any) -> Any:
    """The value with tensors that own their memory alone, so that a slice is not stored with what it was cut from."""
    if isinstance(value, Tensor):
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if isinstance(value, dict):
        return {key: copied(entry) for key, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value


def model_key(model: Any) -> str:
    """What a model is: the `key` that it says it has, or its identity; empty where that cannot be told."""
    given = getattr(model, "key", None)
    if isinstance(given, str) and not isinstance(model, nn.Module):
        return given
    if not isinstance(model, nn.Module):
        return ""
    try:
        return identity(model)
    except Unknown as error:
        log.info("compare: a %s is not cached: %s", type(model).__name__, error)
        return ""


def task_key(step: TaskStep) -> str | None:
    """What a step keeps of every item: the predict function, the parts of a batch, the metrics where they decide it.

    None where the predict function closes over something that cannot be told; then nothing is cached.
    """
    task = step.task
    kept = [f"{name}={metric_text(metric)}" for name, metric in step.battery.items()] if step.keeps_statistics else []
    try:
        functions = [identity(task.predict_fn), source_of(task.align) if task.align else ""]
    except Unknown as error:
        log.warning("compare: rows are not cached, since predict_fn depends on %s", error)
        return None
    parts = [str(task.fields), str(step.keeps_probabilities), *kept]
    return digest(str(SCHEMA), __version__, torch.__version__, *functions, *parts)


def data_key(loader: Batches) -> str:
    """What the data are: the data set's own fingerprint, or a hash of every batch, which reads all of them."""
    source = getattr(getattr(loader, "loader", None), "dataset", None)
    own = getattr(source, "_fingerprint", None)
    state = hashlib.blake2b(digest_size=16)
    if isinstance(own, str):
        return digest(own, str(getattr(loader, "items", None)))
    for ids, batch in loader:
        state.update(f"{ids}".encode())
        _feed(state, batch)
    return state.hexdigest()


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        state.update(f"{value.dtype}{tuple(value.shape)}".encode())
        state.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, entry in value.items():
            state.update(str(key).encode())
            _feed(state, entry)
    elif isinstance(value, list | tuple):
        state.update(f"{type(value).__name__}{len(value)}".encode())
        for entry in value:
            _feed(state, entry)
    else:
        state.update(repr(value).encode())
