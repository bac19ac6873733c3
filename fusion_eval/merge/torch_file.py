"""One file written by `torch.save`: its tensors as views of a mapping of the file, without running code from it."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from fusion_eval.errors import CheckpointError, Fault, listed

_NESTED: Final = ("state_dict", "model_state_dict", "model", "module", "params", "weights")


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.pt`, `.pth`, `.ckpt` or `.bin` file, unread until they are used.

    A state dict under a key such as `state_dict` or `model` is found. Files of the format before torch 1.6 cannot be
    mapped and are read whole.

    Raises:
        CheckpointError: the file is missing, truncated, needs code to be loaded, or holds no state dict.
    """
    if not path.is_file():
        raise CheckpointError(Fault(str(path), "no such file", "a checkpoint"))
    try:
        content = torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            Fault(
                str(path),
                f"more than tensors, or not a checkpoint ({_first_line(error)})",
                "a file that loads with weights_only=True",
                "Save its state dict as safetensors with the program that wrote it.",
            )
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(
            Fault(str(path), f"cannot be read ({_first_line(error)})", "a whole file written by torch.save")
        ) from error
    return _state_dict(path, content)


def tied_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names that are another name's very tensor: {other name: first name}."""
    first: dict[tuple[object, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key in first:
            tied[name] = first[key]
        else:
            first[key] = name
    return tied


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return {str(name): tensor.detach() for name, tensor in content.items()}
        for key in _NESTED:
            if isinstance(content.get(key), Mapping):
                return _state_dict(path, content[key])
        tensors = [str(name) for name, value in content.items() if isinstance(value, Tensor)]
        others = [str(name) for name in content if str(name) not in tensors]
        found = f"{len(tensors)} tensors beside entries that are none: {listed(others)}" if content else "nothing"
    else:
        found = f"a {type(content).__name__}"
    raise CheckpointError(
        Fault(str(path), found, f"a state dict, also under one of the keys {', '.join(_NESTED)}", "Save it alone.")
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
