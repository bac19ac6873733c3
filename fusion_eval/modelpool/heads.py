"""Heads of tasks from files, tensors, modules or configuration nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.task.heads import LinearHead, linear_heads

_WHERE = "modelpool.heads"


def open_heads(source: Any) -> dict[str, nn.Module]:
    """Heads by task.

    Args:
        source: a file whose tensors are named after the tasks; a folder with one such file, or with a file per task
            that holds `weight` and perhaps `bias`; or a mapping from tasks to tensors, modules, files of one head, or
            nodes with a `_target_`.

    Raises:
        ConfigError, CheckpointError: something else is given or found.
    """
    if isinstance(source, str | Path):
        folder = Path(source).expanduser()
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        if len(files) > 1:
            return {file.stem: _head(file, file.stem) for file in files}
        return dict(linear_heads(dict(open_checkpoint(files[0] if files else folder))))
    if isinstance(source, Mapping):
        return {str(task): _head(head, str(task)) for task, head in source.items()}
    raise ConfigError(Fault(_WHERE, f"a {type(source).__name__}", "a file, a folder, or heads by task"))


def _head(source: Any, task: str) -> nn.Module:
    if isinstance(source, nn.Module):
        return source.eval()
    if isinstance(source, Tensor):
        return LinearHead(source, name=task)
    if isinstance(source, str | Path):
        return _stored_head(dict(open_checkpoint(source)), task)
    if isinstance(source, Mapping) and "_target_" in source:
        from fusion_eval.build import build

        return _head(build(source, _key_=f"{_WHERE}.{task}"), task)
    where = f"{_WHERE}.{task}"
    raise ConfigError(Fault(where, f"a {type(source).__name__}", "a tensor, a module, a file or a node with _target_"))


def _stored_head(tensors: Mapping[str, Tensor], task: str) -> LinearHead:
    """The head in a file that holds one: `weight` and `bias` under whatever prefix they have."""
    found = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()}
    if len(found) != len(tensors) or not {"weight"} <= set(found) <= {"weight", "bias"}:
        names = ", ".join(list(tensors)[:5])
        raise ConfigError(Fault(f"{_WHERE}.{task}", f"a file with {names}", "a 'weight' and perhaps a 'bias'"))
    return LinearHead(found["weight"], found.get("bias"), task)
