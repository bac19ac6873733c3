"""A pool whose models come from named sources: the base, the experts, their heads, and what is worth a warning."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final

from torch import nn

from fusion_eval.errors import ConfigError, Fault, FusionEvalError, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.engine import alignment_faults
from fusion_eval.merge.views import filtered
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.modelpool.heads import open_heads
from fusion_eval.modelpool.kinship import dtype_faults, kinship_notes
from fusion_eval.modelpool.skeletons import skeleton_faults

BASE: Final = "base"
FUSION_BENCH_BASE: Final = "_pretrained_"


class SourcePool(BaseModelPool):
    """A base and experts given by where they are.

    Checkpoints are opened when they are asked for and shared while somebody holds them. Implementations give
    `open_source`, `expert_head` and `skeleton`.

    Args:
        base: where the base model is, or None.
        experts: where each expert is, by name; a list takes the names of its files or folders.
        models: another spelling of both: all models by name, the base being called `_pretrained_`.
        heads: a file or folder of linear heads, or heads by task (tensors, modules, or nodes with a `_target_`).
        head_module: the submodule that is each expert's own, such as `classifier`: it is not merged, and `head(task)`
            is that expert's.
    """

    def __init__(
        self,
        base: Any = None,
        experts: Any = None,
        *,
        models: Mapping[str, Any] | None = None,
        heads: Any = None,
        head_module: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._base, self._experts = _named_sources(base, experts, models)
        if heads is not None and head_module is not None:
            raise ConfigError(Fault("modelpool.heads", "given together with head_module", "one of them"))
        self._head_source, self._head_module = heads, head_module
        self._heads: dict[str, nn.Module] | None = None
        self._opened_now: weakref.WeakValueDictionary[str, Checkpoint] = weakref.WeakValueDictionary()

    @property
    def base_name(self) -> str | None:
        """`base`, or None in a pool without one."""
        return None if self._base is None else BASE

    @property
    def expert_names(self) -> tuple[str, ...]:
        """The experts' names, in order."""
        return tuple(self._experts)

    def where(self, name: str) -> str:
        """The config key of a model."""
        return f"modelpool.{BASE}" if name == self.base_name else f"modelpool.experts.{name}"

    @abstractmethod
    def open_source(self, source: Any, name: str) -> Checkpoint:
        """The lazy weights of the model `name` at a source, which is not None."""

    def open(self, name: str) -> Checkpoint:
        """The lazy weights of a model, less its own head; faults say which model it is."""
        known = self._opened_now.get(name)
        if known is None:
            try:
                known = self.open_source(self._base if name == self.base_name else self._experts[name], name)
                if self._head_module is not None:
                    known = filtered(known, exclude=(f"^{self._head_module}\\.",))
            except FusionEvalError as error:
                raise type(error)(*(located(fault, self.where(name)) for fault in error.faults)) from error
            self._opened_now[name] = known
        return known

    def faults(self) -> list[Fault]:
        """Models that cannot be opened; else tensors that do not align; else a skeleton that is not theirs."""
        opened: dict[str, Checkpoint] = {}
        found: list[Fault] = []
        for name in self.names:
            try:
                opened[name] = self.checkpoint(name)
            except FusionEvalError as error:
                found.extend(error.faults)
        if found:
            return list(dict.fromkeys(found))  # what is wrong with the pool itself is said once
        reference = next(iter(opened.values()))
        base = None if self.base_name is None else opened.pop(self.base_name)
        found = [*alignment_faults(base, opened), *dtype_faults(base, opened)]
        return found or self._skeleton_faults(reference)

    def notes(self) -> list[str]:
        """What is worth a warning: experts that do not descend from the base."""
        return kinship_notes(*self._opened())

    def head(self, task: str) -> nn.Module | None:
        """The module from the model's features to the task's logits, or None where models give logits.

        Raises:
            ConfigError: the pool has heads, but none for this task.
        """
        if self._head_module is None and self._head_source is None:
            return None
        if self._heads is None:
            self._heads = {} if self._head_source is None else open_heads(self._head_source)
        if task not in self._heads:
            self._heads[task] = self._own_head(task)
        return self._heads[task]

    @abstractmethod
    def expert_head(self, task: str, path: str) -> nn.Module:
        """The submodule at `path` of the expert called `task`, with its weights."""

    def _own_head(self, task: str) -> nn.Module:
        if self._head_module is not None and task in self._experts:
            return self.expert_head(task, self._head_module)
        known = list(self._experts) if self._head_module is not None else list(self._heads or ())
        where = "modelpool.head_module" if self._head_module is not None else "modelpool.heads"
        expected, hint = f"one of {listed(known)}", did_you_mean(task, known)
        raise ConfigError(Fault(where, f"no head for task '{task}'", expected, hint))

    def _skeleton_faults(self, reference: Checkpoint) -> list[Fault]:
        try:
            return skeleton_faults(self.skeleton(), reference, "modelpool.skeleton")
        except FusionEvalError as error:
            return list(error.faults)


def located(fault: Fault, where: str) -> Fault:
    """The fault of a file or object as one of the config key `where`."""
    if fault.where.startswith("modelpool."):
        return fault
    return replace(fault, where=f"{where} ({fault.where})" if fault.where else where)


def _named_sources(base: Any, experts: Any, models: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """(base, experts by name) from either spelling."""
    if models is not None:
        if base is not None or experts is not None:
            raise ConfigError(Fault("modelpool.models", "given together with base or experts", "one spelling"))
        named = dict(models)
        base = named.pop(FUSION_BENCH_BASE, None)
    elif isinstance(experts, Mapping):
        named = dict(experts)
    else:
        named = _by_stem(experts)
    faults = [
        Fault(f"modelpool.experts.{name}", "no source", "a path, a hub id or a model")
        for name, source in named.items()
        if source is None
    ]
    if BASE in named:
        faults.append(Fault(f"modelpool.experts.{BASE}", "the base's own name", "another name", "Rename the expert."))
    if base is None and not named:
        faults.append(Fault("modelpool", "no models", "experts, by name, and usually a base"))
    if faults:
        raise ConfigError(*faults)
    return base, named


def _by_stem(experts: Any) -> dict[str, Any]:
    """Experts of a list by the name of their file or folder."""
    if experts is None:
        return {}
    if isinstance(experts, str) or not isinstance(experts, Sequence):
        found = f"a {type(experts).__name__}"
        raise ConfigError(Fault("modelpool.experts", found, "a mapping of names to models, or a list of paths"))
    named: dict[str, Any] = {}
    for source in experts:
        if not isinstance(source, str | PurePath):
            raise ConfigError(Fault("modelpool.experts", f"a {type(source).__name__} in a list", "paths, or a mapping"))
        name = PurePath(source).name
        name = name.rpartition(".")[0] if name.endswith((".safetensors", ".pt", ".pth", ".bin", ".ckpt")) else name
        if name in named:
            raise ConfigError(Fault("modelpool.experts", f"two models named '{name}'", "a mapping of names to models"))
        named[name] = source
    return named
