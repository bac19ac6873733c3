"""Running statistics of normalisation layers, estimated anew for a merged model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint
from fusion_eval.merge.views import Composed, Part

_KEYS: Final = ("dataset", "items", "batch_size")
_WHERE: Final = "program.recalibrate"


def setting_faults(setting: Any) -> list[Fault]:
    """What is wrong with `recalibrate`: None, or {dataset: node, items: number or null, batch_size: number}."""
    if setting is None:
        return []
    if not isinstance(setting, Mapping) or "dataset" not in setting or set(setting) - set(_KEYS):
        return [Fault(_WHERE, f"{setting!r}", f"a mapping of {', '.join(_KEYS)}, or null")]
    faults = []
    for key in ("items", "batch_size"):
        value = setting.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 2):
            faults.append(Fault(f"{_WHERE}.{key}", f"{value!r}", "a whole number from 2 on, or null"))
    return faults


def recalibrated(merged: Checkpoint, model: nn.Module, setting: Mapping[str, Any], device: torch.device) -> Checkpoint:
    """The merge with running means and variances of what the model sees; everything else stays.

    They are averages over batches (as in SWA, arXiv:1803.05407; for merges REPAIR, arXiv:2211.08403). Labels are not
    looked at.

    Args:
        merged: the merge.
        model: a model with its weights, which is changed.
        setting: a data set, or a node that builds one, of inputs or of tuples that begin with one; how many items, and
            how many at a time.
        device: where the model runs.

    Raises:
        ConfigError: the model has no running statistics, or the data set no items.
    """
    state = {name: tensor for name, tensor in _statistics(model).items() if name in merged}
    if not state:
        raise ConfigError(
            Fault(_WHERE, "the merge has no running statistics", "a model with BatchNorm", "Leave it out.")
        )
    torch.optim.swa_utils.update_bn(_inputs(setting), model.to(device), device)
    model.eval().cpu()
    found = {name: tensor.detach().to(merged.spec(name).dtype) for name, tensor in _statistics(model).items()}
    fresh = StateDictCheckpoint({name: found[name] for name in state})
    parts = {name: Part(fresh if name in state else merged, name) for name in merged}
    return Composed(parts, f"{merged.source}, recalibrated", merged.tied)


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    return {name: tensor for name, tensor in model.named_buffers() if name.rpartition(".")[2] in kinds}


def _inputs(setting: Mapping[str, Any]) -> Iterator[Tensor]:
    from torch.utils.data import DataLoader, Subset

    from fusion_eval.build import build

    dataset = build(setting["dataset"], _key_=f"{_WHERE}.dataset")
    count = len(dataset) if setting.get("items") is None else min(len(dataset), setting["items"])
    if count < 2:
        raise ConfigError(Fault(f"{_WHERE}.dataset", f"{count} items", "at least 2"))
    batch = setting.get("batch_size") or 64
    loader: DataLoader[Any] = DataLoader(Subset(dataset, range(count)), batch, drop_last=count % batch == 1)
    for found in loader:
        yield found[0] if isinstance(found, list | tuple) else found
