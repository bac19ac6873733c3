"""The evaluation loop: a forward pass per batch, everything else on many rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fusion_eval.errors import DataError, EvaluationError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.rows import Column, Rows, gathered

_MESSAGE = 400  # characters of a foreign error that are shown
_HELD_BYTES = 32 << 20  # raw outputs kept before they are turned into rows


class Batches(Protocol):
    """This rank's batches with the ids of their items; `items` is None where their number is not known."""

    name: str
    items: int | None

    def __iter__(self) -> Iterator[tuple[range, Any]]:
        """Pairs of (ids of the batch's items, batch)."""

    def __len__(self) -> int:
        """How many batches there are; 0 where that is not known."""


class Step(Protocol):
    """How one task's batches become rows."""

    def forward(self, model: nn.Module, batch: Any, ids: range) -> Any:
        """Raw outputs of a batch that is on the device; no synchronisation with the device."""

    def finish(self, outputs: list[Any], ids: Tensor) -> dict[str, Column]:
        """The columns of several batches' raw outputs, on the CPU.

        Raises:
            FusionEvalError: outputs that are not finite, labels outside the head.
        """


def evaluate_rows(
    model: nn.Module, loader: Batches, step: Step, devices: Devices, progress: bool = True
) -> Rows | None:
    """Evaluate a model on a task: all items' rows on rank zero, None on other ranks.

    The model is in evaluation mode meanwhile and as it was afterwards. An error on one rank is raised on all.
    """
    where = f"task '{loader.name}'"
    rows: Rows | FusionEvalError
    try:
        rows = _local_rows(model, loader, step, devices, progress)
    except FusionEvalError as error:
        rows = error
    except Exception as error:
        if devices.world == 1:
            raise
        rows = EvaluationError(Fault(f"{where} on rank {devices.rank}", f"{type(error).__name__}: {error}"))
    return gathered(devices, rows, loader.items, where)


def _local_rows(model: nn.Module, loader: Batches, step: Step, devices: Devices, progress: bool) -> Rows:
    training = model.training
    model.eval()
    parts: list[Rows] = []
    held: list[Any] = []
    ids: list[range] = []
    held_bytes = 0
    try:
        with torch.inference_mode(), devices.autocast():
            for batch_ids, batch in _read(loader, devices, progress and devices.is_zero):
                with _told_as(EvaluationError, _place(loader, devices, f"items {batch_ids[0]} to {batch_ids[-1]}")):
                    output = step.forward(model, to_device(batch, devices.device), batch_ids)
                held.append(output)
                ids.append(batch_ids)
                held_bytes += _nbytes(output)
                if held_bytes >= _HELD_BYTES:
                    parts.append(_finished(step, held, ids, loader))
                    held, ids, held_bytes = [], [], 0
            if held:
                parts.append(_finished(step, held, ids, loader))
    finally:
        model.train(training)
    return Rows.join(parts)


def _read(loader: Batches, devices: Devices, shown: bool) -> Iterator[tuple[range, Any]]:
    """The batches; what a data set or a collate function raises is told as theirs."""
    source, place = iter(_with_progress(loader, loader.name, shown)), "reading the first batch"
    while True:
        with _told_as(DataError, _place(loader, devices, place)):
            entry = next(source, None)
        if entry is None:
            return
        yield entry
        place = f"reading after item {entry[0][-1]}"


def _place(loader: Batches, devices: Devices, what: str) -> str:
    rank = f" on rank {devices.rank}" if devices.world > 1 else ""
    return f"task '{loader.name}'{rank}, {what}"


@contextmanager
def _told_as(kind: type[FusionEvalError], where: str) -> Iterator[None]:
    """What the user's code raises, as one error that says where; the traceback stays in its cause."""
    try:
        yield
    except FusionEvalError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        in_worker = "Original Traceback" in str(error)  # then the last line names the type too
        found = lines[-1] if in_worker else f"{type(error).__name__}: {' '.join(lines)}"
        raise kind(Fault(where, shorten(found, _MESSAGE), do="Set HYDRA_FULL_ERROR=1 to see the traceback.")) from error


def _finished(step: Step, held: list[Any], ids: list[range], loader: Batches) -> Rows:
    flat = torch.cat([torch.arange(batch.start, batch.stop) for batch in ids])
    columns = step.finish(held, flat)
    length = len(next(iter(columns.values())))
    if loader.items is None:  # the last batch of a stream may be short
        flat = flat[:length]
    if any(len(column) != len(flat) for column in columns.values()):
        raise EvaluationError(
            Fault(
                f"task '{loader.name}'",
                f"{length} outputs for {len(flat)} items",
                "one output per item",
                "Check collate_fn, which may not drop or add items, and the data set's length.",
            )
        )
    return Rows(flat, columns)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it on the device; containers keep their types."""
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    mover = getattr(batch, "to", None)
    return mover(device) if callable(mover) else batch


def _nbytes(output: Any) -> int:
    if isinstance(output, Tensor):
        return output.nbytes
    if isinstance(output, tuple | list):
        return sum(_nbytes(entry) for entry in output)
    if isinstance(output, dict):
        return sum(_nbytes(entry) for entry in output.values())
    return 64


def _with_progress(loader: Batches, name: str, shown: bool) -> Iterable[tuple[range, Any]]:
    if not shown:
        return iter(loader)
    from tqdm.auto import tqdm

    total = len(loader) or None
    bar: Iterable[tuple[range, Any]] = tqdm(loader, desc=name, total=total, leave=False, disable=None)
    return bar
