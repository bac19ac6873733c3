"""Whether a dotted path leads somewhere and whether keywords fit what is there; looks, never calls."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator
from types import ModuleType
from typing import Any

from fusion_eval.component import Component, accepted_keywords
from fusion_eval.errors import Fault, did_you_mean, listed

_SHOWN = 20
_EXTRAS = {
    "torchvision": "vision",
    "PIL": "vision",
    "transformers": "huggingface",
    "datasets": "huggingface",
    "tokenizers": "huggingface",
    "peft": "lora",
    "statsmodels": "stats",
    "pandas": "stats",
    "xarray": "stats",
    "scikit_posthocs": "stats",
    "matplotlib": "plot",
    "jinja2": "language",
}


def missing_package(where: str, package: str) -> Fault:
    """The fault of an optional package that is not installed, with the line that installs it."""
    name = package.partition(".")[0]
    extra = _EXTRAS.get(name)
    line = f'pip install "fusion_eval[{extra}]"' if extra else f"pip install {name}"
    return Fault(where, f"the package '{name}' is not installed", do=f"Run: {line}")


def import_fault(where: str, path: str) -> Fault | None:
    """What stops a dotted path from being imported, down to the first name that is wrong; None when nothing does."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        return Fault(where, f"'{path}'", "the dotted path of a class or function, such as torch.nn.Linear")
    found: Any = None
    for depth, part in enumerate(parts):
        name = ".".join(parts[: depth + 1])
        if depth and hasattr(found, part):
            found = getattr(found, part)
            continue
        if depth and not isinstance(found, ModuleType):
            return _no_such_name(where, path, parts[:depth], part, found)
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            return _module_not_found(where, path, error, parts[:depth], part, found)
        except Exception as error:  # noqa: BLE001  a module of anybody's may raise anything while it is imported
            return Fault(where, f"importing '{name}' failed with {type(error).__name__}: {error}")
    return None if callable(found) else Fault(where, f"'{path}' is a {type(found).__name__}", "a class or function")


def _module_not_found(
    where: str, path: str, error: ModuleNotFoundError, parents: list[str], part: str, found: Any
) -> Fault:
    wanted = ".".join([*parents, part])
    if error.name != wanted:
        return missing_package(where, error.name or wanted)
    if parents:
        return _no_such_name(where, path, parents, part, found)
    if part in _EXTRAS:
        return missing_package(where, part)
    do = did_you_mean(part, [module.name for module in pkgutil.iter_modules()])
    return Fault(where, f"no module '{part}' (of '{path}')", do=do or f"Install it, or put {part}.py beside ./config.")


def _no_such_name(where: str, path: str, parents: list[str], part: str, found: Any) -> Fault:
    names = [name for name in dir(found) if not name.startswith("_")]
    if hasattr(found, "__path__"):
        names += [module.name for module in pkgutil.iter_modules(found.__path__)]
    return Fault(where, f"'{'.'.join(parents)}' has no '{part}' (of '{path}')", do=did_you_mean(part, names))


def keyword_faults(
    where: str,
    target: Callable[..., Any],
    keywords: Iterable[str],
    positional: int = 0,
    *,
    complete: bool = True,
    supplied: Collection[str] = (),
) -> Iterator[Fault]:
    """Keywords that the target does not take and, when the call is `complete`, arguments that it lacks.

    Args:
        where: the config key.
        target: a class or function; one whose signature is not known takes anything.
        keywords: the names given.
        positional: how many arguments are given by position.
        complete: whether nothing but `supplied` is added before the call.
        supplied: names that the caller adds.
    """
    parameters = _parameters(target)
    if parameters is None:
        return
    given = set(keywords)
    by_position = {p.name for p in _positional(parameters)[:positional]}
    takes = _accepted(target, parameters)
    name = getattr(target, "__qualname__", str(target))
    for keyword in sorted(given):
        key = f"{where}.{keyword}" if where else keyword
        if takes is not None and keyword not in takes:
            known = listed(sorted(takes), _SHOWN)
            yield Fault(key, f"{name} takes no '{keyword}'", f"one of {known}", did_you_mean(keyword, takes))
        elif keyword in by_position:
            yield Fault(key, f"'{keyword}' is given by position too (_args_)", do="Give it once.")
    needed = [p.name for p in parameters if _required(p) and p.name not in {*given, *by_position, *supplied}]
    if complete and needed:
        yield Fault(where or name, f"{name} needs {listed(needed)}", do=f"Set {where}.{needed[0]}=..." if where else "")


def _parameters(target: Any) -> list[inspect.Parameter] | None:
    """The parameters of a call without `self`, or None for a builtin that does not tell.

    A class is asked for its constructor: a `__new__` that takes anything would hide it.
    """
    try:
        if isinstance(target, type) and inspect.isfunction(target.__init__):  # type: ignore[misc]
            return list(inspect.signature(target.__init__).parameters.values())[1:]  # type: ignore[misc]
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None


def _positional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _accepted(target: Any, parameters: list[inspect.Parameter]) -> set[str] | None:
    """The keywords that a target takes, or None where it takes any."""
    if isinstance(target, type) and issubclass(target, Component):
        return accepted_keywords(target)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variadic
