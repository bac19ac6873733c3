"""What a model or a function is, as text that is equal only where it does the same: for caches of what it gave.

A model is its structure, its weights, the code of its own classes and their plain attributes; a function is its source,
what is bound to it and what it closes over. What cannot be told has no identity and is never cached.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from fusion_eval.program.compare.receipt import callable_text, state_hash

_OF_TORCH = frozenset(vars(nn.Module()))
_PLAIN = (str, int, float, complex, bool, bytes, type(None), Path, torch.dtype, torch.device, torch.Size, range)
_FUNCTIONS = (functools.partial, FunctionType, MethodType, BuiltinFunctionType, type)
_DEEPEST = 8


class Unknown(Exception):  # noqa: N818 (no failure: such a thing is not cached)
    """Something whose identity cannot be told."""


def digest(*parts: str) -> str:
    """One hash of several texts."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part.encode())
        state.update(b"\0")
    return state.hexdigest()


def identity(value: Any, depth: int = 0) -> str:
    """The value as text that tells apart whatever gives other results.

    Raises:
        Unknown: it holds an object of which only the address is known, or is nested without end.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth > _DEEPEST:
        raise Unknown("nested too deeply")
    if isinstance(value, nn.Module):
        return _of_module(value, depth + 1)
    if isinstance(value, Tensor):
        return state_hash({"": value})
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key!r}:{identity(entry, depth + 1)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({','.join(identity(entry, depth + 1) for entry in value)})"
    if isinstance(value, set | frozenset):
        return f"set({','.join(sorted(identity(entry, depth + 1) for entry in value))})"
    if isinstance(value, _FUNCTIONS):
        return source_of(value, depth + 1)
    return value.__name__ if isinstance(value, ModuleType) else _of_object(value, depth + 1)


def _of_module(module: nn.Module, depth: int) -> str:
    if any(each._forward_hooks or each._forward_pre_hooks for each in module.modules()):
        raise Unknown("a model with hooks")
    own = [each for each in module.named_modules() if not type(each[1]).__module__.startswith("torch.")]
    sources = sorted({_source(cast("Hashable", type(each))) or "" for _, each in own})
    attributes = [
        f"{name}.{key}={identity(entry, depth)}"
        for name, each in own
        for key, entry in sorted(vars(each).items())
        if key not in _OF_TORCH
    ]
    return digest(repr(module), *sources, *attributes, state_hash(module.state_dict()))


def _of_object(value: Any, depth: int) -> str:
    """An object by its class and its attributes, or by what it prints."""
    kind = type(value)
    slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ()) if hasattr(value, name)]
    attributes = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
    source = _source(cast("Hashable", kind))
    if source is not None:
        return f"{callable_text(kind)}{source}{identity(attributes, depth)}"
    text = repr(value)
    if " at 0x" in text:
        raise Unknown(text)
    return text


def source_of(function: Callable[..., Any], depth: int = 0) -> str:
    """A function's or class's source, with what is bound to it and what it closes over.

    A function with a `depends_on` says itself, from the arguments bound to it, on what else its result depends.

    Raises:
        Unknown: it closes over something that cannot be told.
    """
    if isinstance(function, functools.partial):
        tells = getattr(function.func, "depends_on", None)
        told = "" if tells is None else str(tells(*function.args, **function.keywords))
        bound = f"{identity(function.args, depth)}{identity(function.keywords, depth)}"
        return f"{source_of(function.func, depth)}{bound}{told}"
    if isinstance(function, MethodType):
        return f"{source_of(function.__func__, depth)}{identity(function.__self__, depth)}"
    if not isinstance(function, _FUNCTIONS):
        return identity(function, depth)
    if not isinstance(function, FunctionType):
        return _source(function) or callable_text(function)
    source = _source(function) or _bytecode(function.__code__)
    cells = [identity(cell.cell_contents, depth + 1) for cell in function.__closure__ or ()]
    return f"{source}{cells}"


def lasting_source(function: Callable[..., Any]) -> str:
    """`source_of`, or the source alone where the function closes over something that cannot be told."""
    try:
        return source_of(function)
    except Unknown:
        inner = function.func if isinstance(function, functools.partial) else function
        return _source(inner) or callable_text(type(inner))


@functools.lru_cache(maxsize=1024)
def _source(function: Hashable) -> str | None:
    """The source, where it is to be had."""
    try:
        return inspect.getsource(cast("Any", function))
    except (OSError, TypeError):
        return None


def _bytecode(code: CodeType) -> str:
    """What a function does, where its source is not to be had."""
    constants = [_bytecode(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
