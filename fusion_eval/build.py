"""From configuration to objects: `check` finds every fault before work starts, `build` instantiates."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fusion_eval.binding import import_fault, keyword_faults, missing_package
from fusion_eval.component import Component
from fusion_eval.errors import ConfigError, Fault, FusionEvalError

_SPECIAL = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
_OURS = "fusion_eval."


def build(node: Any, /, *, _key_: str = "", **given: Any) -> Any:
    """The object that a node's `_target_` and keywords describe; an object that is there already comes back as it is.

    Nodes inside the node are built first, but for pools (`_recursive_: false` by default), which build theirs when they
    need them. Containers arrive as plain dictionaries and lists.

    Args:
        node: a configuration, a list or dictionary of configurations, or an object.
        _key_: where the node stands in the configuration, for errors.
        **given: further arguments, passed on untouched.

    Raises:
        ConfigError: the target cannot be imported or called, with the config key and the cause.
    """
    if isinstance(node, list | ListConfig):
        return [build(item, _key_=f"{_key_}[{index}]") for index, item in enumerate(node)]
    if not isinstance(node, dict | DictConfig):
        return node
    if "_target_" not in node:
        return {name: build(value, _key_=_child(_key_, name)) for name, value in node.items()}
    key = _key_ or _key_of(node)
    try:
        recipe = _recipe(node)
        return functools.partial(recipe, **given) if node.get("_partial_", False) else recipe(**given)
    except FusionEvalError:
        raise
    except InstantiationException as error:
        raise _hydra_failure(error, key, node) from error
    except Exception as error:
        raise _failure(error, key, node["_target_"]) from error


instantiate = build
"""The name that pools use for nodes which they build when a task runs."""


def _key_of(node: Mapping[str, Any]) -> str:
    return str(node._get_full_key(None) or "") if isinstance(node, DictConfig) else ""


def _recipe(node: Any) -> Any:
    """The target with the node's keywords bound, called by nobody yet, so that what it raises arrives unwrapped."""
    choices = {"_convert_": "all", "_recursive_": not _is_component(locate(node["_target_"]))}
    return hydra_instantiate(node, _partial_=True, **{key: choices[key] for key in choices if key not in node})


def _is_component(target: Any) -> bool:
    owner = target if isinstance(target, type) else getattr(target, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, Component)


def locate(target: str) -> Any:
    """The class or function that a `_target_` names, imported, under Hydra's rules of what may be named.

    Raises:
        InstantiationException: Hydra's, when it cannot be imported, is no callable or is blocked.
    """
    return hydra_instantiate({"_target_": target, "_partial_": True}).func


def _hydra_failure(error: InstantiationException, key: str, node: Any) -> FusionEvalError:
    """What stopped Hydra: what `check` would have found, an error of our own, or what an inner target raised."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
        if isinstance(cause, FusionEvalError):
            return cause
    plain = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else node
    if faults := list(_faults(plain, key)):
        return ConfigError(*faults)
    message, _, inner = str(error).partition("full_key: ")
    where = inner.strip() if inner.startswith(key) else ".".join(filter(None, (key, inner.strip())))
    if cause is error:
        return ConfigError(Fault(where, " ".join(message.split())))
    named = re.search("target '(.+?)'", message)
    return _failure(cause, where, named[1] if named else node["_target_"])


def _failure(error: BaseException, key: str, target: str) -> FusionEvalError:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return ConfigError(missing_package(key or target, error.name))
    detail = " ".join(str(error).split())
    found = f"building {target} failed with {type(error).__name__}: {detail}"
    return ConfigError(Fault(key or target, found, do="Set HYDRA_FULL_ERROR=1 to see the traceback."))


def check(cfg: Any, skip: Collection[str] = ()) -> None:
    """Look at every node of a configuration without building one.

    Every `_target_` can be imported and may be named, every keyword fits its signature, no required argument is
    missing, every interpolation and `???` has a value; nodes that are built later are looked at too.

    Args:
        cfg: the configuration, or a part of it.
        skip: keys at its root whose targets are not imported.

    Raises:
        ConfigError: with all faults at once.
    """
    faults: list[Fault] = []
    plain = _plain(cfg, "", faults) if isinstance(cfg, DictConfig | ListConfig) else cfg
    faults.extend(_faults({key: plain[key] for key in plain if key not in skip} if skip else plain, ""))
    if faults:
        raise ConfigError(*faults)


def _plain(node: Any, key: str, faults: list[Fault]) -> Any:
    """The configuration as dictionaries and lists; what has no value becomes a fault and None."""
    if not isinstance(node, DictConfig | ListConfig):
        return node
    names: list[Any] = list(node) if isinstance(node, DictConfig) else list(range(len(node)))
    found: dict[Any, Any] = {}
    for name in names:
        where = _child(key, name)
        try:
            found[name] = None
            if OmegaConf.is_missing(node, name):
                faults.append(Fault(where, "??? stands for a value that has to be given", do=f"Set {where}=..."))
            else:
                found[name] = _plain(node[name], where, faults)
        except OmegaConfBaseException as error:
            faults.append(Fault(where, str(error).splitlines()[0]))
    return found if isinstance(node, DictConfig) else list(found.values())


def _child(key: str, name: Any) -> str:
    """The key of an item of a list or of an entry of a dictionary."""
    if isinstance(name, int):
        return f"{key}[{name}]"
    return f"{key}.{name}" if key else str(name)


def _faults(node: Any, key: str, owner: Any = None) -> Iterator[Fault]:
    """The faults of a node and of all nodes inside; `owner` is the target that will build the node later, if any."""
    if isinstance(node, dict):
        target = None
        if "_target_" in node:
            target = yield from _target_faults(node, key, owner)
            owner = target if _builds_later(node, target) else None
        for name, value in node.items():
            if name != "_target_":
                yield from _faults(value, _child(key, name), owner)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _faults(value, _child(key, index), owner)


def _builds_later(node: Mapping[str, Any], target: Any) -> bool:
    return not node.get("_recursive_", not _is_component(target))


def _target_faults(node: Mapping[str, Any], key: str, owner: Any) -> Generator[Fault, None, Any]:
    """Yields what is wrong with one node; returns its target, or None when that cannot be had."""
    name = node["_target_"]
    where = f"{key}._target_" if key else "_target_"
    if not isinstance(name, str):
        yield Fault(where, repr(name), "the dotted path of a class or function")
        return None
    try:
        target = locate(name)
    except InstantiationException as error:
        yield import_fault(where, name) or Fault(where, _first_sentence(error))
        return None
    keywords = [str(keyword) for keyword in node if keyword not in _SPECIAL]
    complete = not node.get("_partial_", False) and (owner is None or _is_ours(owner))
    supplied = (*getattr(owner, "supplied_keywords", ()), *getattr(target, "given_by_launch", ()))
    yield from keyword_faults(
        key, target, keywords, len(node.get("_args_") or ()), complete=complete, supplied=supplied
    )
    return target


def _is_ours(owner: Any) -> bool:
    """Whether the package's own code builds the node; what a user's class adds to its nodes is not known."""
    return str(getattr(owner, "__module__", "")).startswith(_OURS)


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0]


def option_node(group: str, name: str, **changes: Any) -> dict[str, Any]:
    """The node of an option of a configuration group, with keywords added or replaced.

    Raises:
        ConfigError: there is no such option.
    """
    from fusion_eval.compose import option

    return {**option(group, name), **changes}


def build_option(group: str, name: str, **changes: Any) -> Any:
    """The object that an option of a configuration group describes, such as `build_option("method", "ties")`.

    Args:
        group: the group.
        name: the option, the package's or the user's.
        **changes: keywords to add or to replace.

    Raises:
        ConfigError: there is no such option, or a keyword does not fit.
    """
    node = option_node(group, name, **changes)
    faults = list(_faults(node, group))
    if faults:
        raise ConfigError(*faults)
    return build(node, _key_=group)
