"""The evaluation loop: a forward pass per batch, everything else on many rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import shorten
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fusion_eval.errors import DataError, EvaluationError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.gathering import gathered
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.evaluation.spill import GrowingRows, give_back_memory

_MESSAGE = 400  # characters of a foreign error that are shown
_READING, _FORWARD = "reading", "forward"
_HELD_BYTES = 8 << 20  # raw outputs kept before they are turned into rows


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
        rows = local_rows(model, loader, step, devices, progress)
    except FusionEvalError as error:
        rows = error
    except Exception as error:
        if devices.world == 1:
            raise
        rows = EvaluationError(Fault(f"{where} on rank {devices.rank}", f"{type(error).__name__}: {error}"))
    return gathered(devices, rows, loader.items, where)


def local_rows(model: nn.Module, loader: Batches, step: Step, devices: Devices, progress: bool) -> Rows:
    """The rows of this loader's batches only.

    Raises:
        FusionEvalError: what the model, the data or the outputs cannot do.
    """
    training = model.training
    model.eval()
    held = _Held(step, loader)
    moves = devices.device.type != "cpu"  # loaders give batches on the CPU
    doing, ids = _READING, range(0)  # what the user's code is asked for, and the last batch
    try:
        with torch.inference_mode(), devices.autocast():
            for ids, batch in _with_progress(loader, progress and devices.is_zero):
                doing = _FORWARD
                output = step.forward(model, to_device(batch, devices.device) if moves else batch, ids)
                doing = ""
                held.add(output, ids)
                doing = _READING
            doing = ""
            return held.rows()
    except FusionEvalError:
        raise
    except Exception as error:
        if not doing:
            raise  # a bug of ours
        raise _told(error, doing, ids, loader, devices) from error
    finally:
        model.train(training)


class _Held:
    """Raw outputs that are turned into rows many batches at a time."""

    def __init__(self, step: Step, loader: Batches) -> None:
        self.step, self.loader = step, loader
        self.outputs: list[Any] = []
        self.ids: list[range] = []
        self.parts = GrowingRows()
        self.capacity = 0

    def add(self, output: Any, ids: range) -> None:
        """Keep a batch's outputs; batches are taken to be about as large as the first of a part."""
        if not self.outputs:
            self.capacity = max(1, _HELD_BYTES // max(1, _nbytes(output)))
        self.outputs.append(output)
        self.ids.append(ids)
        if len(self.outputs) >= self.capacity:
            self._finish()
            give_back_memory()

    def rows(self) -> Rows:
        """All rows."""
        if self.outputs:
            self._finish()
        return self.parts.rows()

    def _finish(self) -> None:
        self.parts.add(_finished(self.step, self.outputs, self.ids, self.loader))
        self.outputs, self.ids = [], []


def _told(error: Exception, doing: str, ids: range, loader: Batches, devices: Devices) -> FusionEvalError:
    """What the user's code raised, as one error that says where; the traceback stays in its cause."""
    rank = f" on rank {devices.rank}" if devices.world > 1 else ""
    after = f"after item {ids[-1]}" if ids else "the first batch"
    what = f"{_READING} {after}" if doing == _READING else f"items {ids[0]} to {ids[-1]}"
    lines = str(error).strip().splitlines() or [""]
    in_worker = "Original Traceback" in str(error)  # then the last line names the type too
    found = lines[-1] if in_worker else f"{type(error).__name__}: {' '.join(lines)}"
    do = "Set HYDRA_FULL_ERROR=1 to see the traceback."
    kind = DataError if doing == _READING else EvaluationError
    return kind(Fault(f"task '{loader.name}'{rank}, {what}", shorten(found, _MESSAGE), do=do))


def _finished(step: Step, held: list[Any], ids: list[range], loader: Batches) -> Rows:
    flat = _numbers(ids)
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


def _numbers(ids: list[range]) -> Tensor:
    """All ids; one range where the batches follow each other, as they do on one rank."""
    if ids[-1].stop - ids[0].start == sum(map(len, ids)):
        return torch.arange(ids[0].start, ids[-1].stop)
    return torch.cat([torch.arange(batch.start, batch.stop) for batch in ids])


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


def _with_progress(loader: Batches, shown: bool) -> Iterable[tuple[range, Any]]:
    if not shown:
        return loader
    from tqdm.auto import tqdm

    total = len(loader) if loader.items is not None else None
    bar: Iterable[tuple[range, Any]] = tqdm(loader, desc=loader.name, total=total, leave=False, disable=None)
    return bar
