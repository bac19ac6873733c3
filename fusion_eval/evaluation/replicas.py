"""One model on several devices of this process: a copy on each, which takes every n-th batch in a thread of its own.

A batch's forward pass has the same operands wherever it runs, so the rows are those of one device of that kind, to the
bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from fusion_eval.errors import EvaluationError, Fault, FusionEvalError
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.gathering import gathered
from fusion_eval.evaluation.loop import Batches, Step, local_rows
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.evaluation.spill import PIECE_BYTES, SPILL_BYTES, ColumnFile

Deal = Callable[[int, int], Batches]
"""(share, shares) -> the batches of one share, with the ids of their items."""


def rows_of_replicas(
    model: nn.Module, places: Sequence[torch.device], deal: Deal, step: Callable[[], Step], *, progress: bool = False
) -> Rows:
    """All items' rows, evaluated on several devices at once.

    Args:
        model: the model, which stays where it is.
        places: the devices; one may be named twice.
        deal: the batches of each device.
        step: builds how batches become rows, once per device.
        progress: show a progress bar for the first device.

    Raises:
        FusionEvalError: what the model, the data or the outputs cannot do; the first device's first.
    """
    copies = [_copy(model, place) for place in places]
    loaders = [deal(share, len(places)) for share in range(len(places))]

    def work(share: int) -> Rows | FusionEvalError:
        devices = Devices(places[share])
        try:
            return local_rows(copies[share], loaders[share], step(), devices, progress and share == 0)
        except FusionEvalError as error:
            return error

    with ThreadPoolExecutor(len(places)) as pool:
        found = list(pool.map(work, range(len(places))))
    for each in found:
        if isinstance(each, FusionEvalError):
            raise each
    rows = _merged([each for each in found if isinstance(each, Rows)])
    whole = gathered(Devices(), rows, loaders[0].items, f"task '{loaders[0].name}'")
    assert whole is not None
    return whole


def _copy(model: nn.Module, place: torch.device) -> nn.Module:
    try:
        return copy.deepcopy(model).to(place)
    except (TypeError, RuntimeError) as error:
        found = f"cannot be copied to {place} ({' '.join(str(error).split())})"
        raise EvaluationError(Fault("the model", found, "one that can", "Use one device.")) from error


def _merged(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts in the order of their ids; large columns go to files, piece by piece."""
    filled = [part for part in parts if len(part)]
    large = [name for name in (filled[0].columns if filled else ()) if _is_large([p.columns[name] for p in filled])]
    small = [Rows(p.ids, {name: c for name, c in p.columns.items() if name not in large}) for p in filled]
    whole = Rows.join(small)
    for name in large:
        whole.columns[name] = _in_order([p.ids for p in filled], [p.columns[name] for p in filled])
    return whole


def _is_large(columns: Sequence[Column]) -> bool:
    tensors = [column for column in columns if isinstance(column, Tensor)]
    alike = len({(column.dtype, column.shape[1:]) for column in tensors}) == 1
    return len(tensors) == len(columns) and alike and sum(column.nbytes for column in tensors) > SPILL_BYTES


def _in_order(ids: Sequence[Tensor], columns: Sequence[Column]) -> Tensor:
    part_of = torch.cat([torch.full_like(each, number) for number, each in enumerate(ids)])
    place_of = torch.cat([torch.arange(len(each)) for each in ids])
    order = torch.argsort(torch.cat(list(ids)))
    tensors = [column for column in columns if isinstance(column, Tensor)]
    file = ColumnFile(tensors[0])
    step = max(1, PIECE_BYTES * len(tensors[0]) // max(1, tensors[0].nbytes))
    for start in range(0, len(order), step):
        chosen = order[start : start + step]
        piece = tensors[0].new_empty((len(chosen), *tensors[0].shape[1:]))
        for number, tensor in enumerate(tensors):
            mine = part_of[chosen] == number
            piece[mine] = tensor[place_of[chosen][mine]]
        file.add(piece)
    return file.tensor()
