"""Model pools of files and folders, of state dicts, and of modules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, final

from torch import Tensor, nn

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.lora import adapted
from fusion_eval.merge.views import filtered, without_prefix
from fusion_eval.modelpool.loading import load_into
from fusion_eval.modelpool.skeletons import built, without_head
from fusion_eval.modelpool.source_pool import SourcePool
from fusion_eval.task.heads import LinearHead

Skeleton = nn.Module | Callable[[], nn.Module] | Mapping[str, Any]


class ArchitecturePool(SourcePool):
    """A pool of models of one architecture, which a node, a function or a module gives."""

    def __init__(
        self, base: Any = None, experts: Any = None, *, skeleton: Skeleton | None = None, **kwargs: Any
    ) -> None:
        super().__init__(base, experts, **kwargs)
        self._skeleton = skeleton

    @property
    def runnable(self) -> bool:
        """Whether the pool was given an architecture."""
        return self._skeleton is not None

    def skeleton(self) -> nn.Module:
        """The architecture, without weights, and without the head that is each expert's own.

        Raises:
            ConfigError: the pool was given none.
        """
        module = self._architecture()
        if self._head_module is not None:
            without_head(module, self._head_module)
        return module.eval()

    def expert_head(self, task: str, path: str) -> nn.Module:
        """The expert's submodule at `path`; a linear one may have another number of classes than the skeleton's."""
        head = without_head(self._architecture(), path)
        tensors = dict(without_prefix(self.open_source(self._experts[task], task), f"{path}."))
        if isinstance(head, nn.Linear):
            return LinearHead(tensors["weight"], tensors.get("bias"), task)
        return load_into(head, tensors)

    def _skeleton_faults(self, reference: Checkpoint) -> list[Fault]:
        return [] if self._skeleton is None else super()._skeleton_faults(reference)

    def _architecture(self) -> nn.Module:
        if self._skeleton is None:
            do = "Give a node such as {_target_: torchvision.models.resnet18}, or only merge and save."
            raise ConfigError(Fault("modelpool.skeleton", "none, so no model can be built", "an architecture", do))
        if isinstance(self._skeleton, nn.Module):
            return copy.deepcopy(self._skeleton)
        return built(self._skeleton)


@final
class CheckpointPool(ArchitecturePool):
    """Models in checkpoint files or folders, or made by a node with a `_target_`.

    Args:
        base: a file, an index, a folder, or a node that builds a module or a state dict; None for a pool without base.
        experts: the same, by name; a list of paths takes the names of the files; `{adapter: folder}` is the base with
            a LoRA adapter.
        skeleton: a node such as `{_target_: torchvision.models.resnet18, num_classes: 10}`; needed where models run.
        include: regular expressions; only tensors whose names one of them finds are used.
        exclude: regular expressions; tensors whose names one of them finds are left out.
        **kwargs: `models`, `heads`, `head_module`, see `SourcePool`.
    """

    def __init__(
        self,
        base: Any = None,
        experts: Any = None,
        *,
        skeleton: Skeleton | None = None,
        include: tuple[str, ...] = (".*",),
        exclude: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(base, experts, skeleton=skeleton, **kwargs)
        self._include, self._exclude = tuple(include), tuple(exclude)

    def open_source(self, source: Any, name: str) -> Checkpoint:
        """The weights in a file, or of what a node builds."""
        if isinstance(source, str | PurePath):
            opened = open_checkpoint(source)
        elif isinstance(source, Mapping) and "_target_" in source:
            opened = _of_node(source, name)
        elif isinstance(source, Mapping) and "adapter" in source:
            opened = self._with_adapter(source)
        else:
            expected = "a path, {adapter: path} or a node with _target_"
            raise ConfigError(Fault("", f"a {type(source).__name__}", expected))
        if self._include == (".*",) and not self._exclude:
            return opened
        return filtered(opened, include=self._include, exclude=self._exclude)

    def _with_adapter(self, source: Mapping[str, Any]) -> Checkpoint:
        """The weights at `path`, by default the base's, with a LoRA adapter."""
        unknown = [key for key in source if key not in ("path", "adapter")]
        place = source.get("path", self._base)
        if unknown or not isinstance(place, str | PurePath):
            found = f"no key '{unknown[0]}'" if unknown else "an adapter without a base in a file"
            raise ConfigError(
                Fault("", found, "{path: base, adapter: folder}; path may be left out in a pool with base")
            )
        return adapted(open_checkpoint(place), [source["adapter"]])


@final
class StateDictPool(ArchitecturePool):
    """Models whose weights are in memory: `StateDictPool(base, {"a": model_a.state_dict(), ...})`.

    Args:
        base: a state dict or a checkpoint, or None.
        experts: the same, by name.
        skeleton: a module of the architecture, or a function or node that makes one; needed where models run.
        **kwargs: `models`, `heads`, `head_module`, see `SourcePool`.
    """

    def open_source(self, source: Any, name: str) -> Checkpoint:
        """A view of the state dict; nothing is copied."""
        if isinstance(source, Checkpoint):
            return source
        if isinstance(source, Mapping) and all(isinstance(value, Tensor) for value in source.values()):
            return StateDictCheckpoint(source, f"state dict '{name}'")
        raise ConfigError(Fault("", f"a {type(source).__name__}", "a state dict: tensors by name"))


@final
class ModulePool(ArchitecturePool):
    """Models that are there as modules: `ModulePool(base, {"a": model_a, "b": model_b})`. None of them is changed.

    Args:
        base: a module, or None.
        experts: modules, by name.
        skeleton: by default a copy of the first model.
        **kwargs: `models`, `heads`, `head_module`, see `SourcePool`.
    """

    def __init__(
        self,
        base: nn.Module | None = None,
        experts: Mapping[str, nn.Module] | None = None,
        *,
        skeleton: Skeleton | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(base, experts, skeleton=skeleton, **kwargs)
        if self._skeleton is None:
            self._skeleton = self._base if self._base is not None else next(iter(self._experts.values()))

    def open_source(self, source: Any, name: str) -> Checkpoint:
        """A view of the module's state; nothing is copied."""
        if not isinstance(source, nn.Module):
            raise ConfigError(Fault("", f"a {type(source).__name__}", "a torch.nn.Module"))
        return StateDictCheckpoint.of(source, f"module '{name}'")


def _of_node(node: Mapping[str, Any], name: str) -> Checkpoint:
    """The weights of the module or state dict that a node builds."""
    from fusion_eval.build import build

    made = build(node)
    if isinstance(made, nn.Module):
        return StateDictCheckpoint.of(made, f"{node['_target_']} for '{name}'")
    if isinstance(made, Checkpoint):
        return made
    if isinstance(made, Mapping) and made and all(isinstance(value, Tensor) for value in made.values()):
        return StateDictCheckpoint(made, f"{node['_target_']} for '{name}'")
    raise ConfigError(Fault("", f"{node['_target_']} makes a {type(made).__name__}", "a module or a state dict"))
