"""Skeletons: modules built for their structure, whose weights take no memory and no time to initialise."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fusion_eval.errors import ConfigError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec

_patching = threading.RLock()


@contextmanager
def weightless() -> Iterator[None]:
    """Within it, parameters of new modules are on the meta device; buffers are real.

    A module recomputes buffers that no checkpoint holds (position ids, rotary frequencies), so these must have their
    values; `torch.device("meta")` would lose them.
    """
    with _patching:
        register = nn.Module.register_parameter

        def register_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
            if param is not None and not param.is_meta:
                param = nn.Parameter(param.data.to("meta"), requires_grad=param.requires_grad)
            register(self, name, param)

        nn.Module.register_parameter = register_meta  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.register_parameter = register  # type: ignore[method-assign]


def built(node: Any, where: str = "modelpool.skeleton") -> nn.Module:
    """The weightless module that a node with a `_target_`, or a function without arguments, makes.

    Raises:
        ConfigError: the node cannot be built, or makes something else.
    """
    from fusion_eval.build import build

    with weightless():
        module = build(node, _key_=where) if isinstance(node, Mapping) else node()
    if not isinstance(module, nn.Module):
        raise ConfigError(Fault(where, f"makes a {type(module).__name__}", "a torch.nn.Module"))
    return module.eval()


def described(module: nn.Module) -> dict[str, TensorSpec]:
    """Shapes and dtypes of a module's state, shared weights under their first name."""
    specs: dict[str, TensorSpec] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            specs[name] = TensorSpec(tuple(tensor.shape), tensor.dtype)
    return specs


def skeleton_faults(module: nn.Module, checkpoint: Checkpoint, where: str) -> list[Fault]:
    """Whether the checkpoint's tensors are those of the module, by names and shapes."""
    specs = described(module)
    stored = {*checkpoint, *checkpoint.tied}
    every = set(module.state_dict(keep_vars=True)) | {name for name, _ in module.named_buffers()}
    lost = [name for name in specs if name not in stored]
    extra = [name for name in checkpoint if name not in every]
    unequal = [
        f"{name} is {specs[name].shape} in the skeleton and {checkpoint.spec(name).shape} in the weights"
        for name in specs
        if name in checkpoint and checkpoint.spec(name).shape != specs[name].shape
    ]
    kind = type(module).__name__
    faults = []
    if lost:
        found = f"{kind} has {len(lost)} of {len(specs)} weights that {checkpoint.source} lacks: {listed(lost)}"
        faults.append(Fault(where, found))
    if extra:
        found = f"{kind} has no place for {len(extra)} tensors of {checkpoint.source}: {listed(extra)}"
        faults.append(Fault(where, found))
    if unequal:
        faults.append(Fault(where, f"{len(unequal)} weights of {kind} differ in shape: {listed(unequal)}"))
    return faults


def without_head(module: nn.Module, path: str, where: str = "modelpool.head_module") -> nn.Module:
    """Takes the submodule at `path` out of a module, leaves an identity in its place, and returns the submodule.

    Raises:
        ConfigError: there is no such submodule.
    """
    parent_path, _, name = path.rpartition(".")
    try:
        parent, head = module.get_submodule(parent_path), module.get_submodule(path)
    except AttributeError as error:
        names = [child for child, _ in module.named_children()]
        raise ConfigError(
            Fault(where, f"{type(module).__name__} has no submodule '{path}'", f"one like {listed(names)}")
        ) from error
    setattr(parent, name, nn.Identity())
    return head


def named_dtype(name: str | torch.dtype | None, where: str = "modelpool.dtype") -> torch.dtype | None:
    """The floating dtype called `name`, such as "bfloat16" or torch.bfloat16.

    Raises:
        ConfigError: there is none of that name.
    """
    if name is None or isinstance(name, torch.dtype):
        return name
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(Fault(where, f"'{name}'", "float32, bfloat16, float16 or float64"))
    return dtype
