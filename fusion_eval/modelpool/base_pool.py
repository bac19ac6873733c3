"""What a model pool is: a base and experts by name, whose weights are read when they are needed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.engine import AlignedPool, alignment_faults
from fusion_eval.mixins import BaseYAMLSerializable


class BaseModelPool(BaseYAMLSerializable):
    """Named models of one architecture.

    Implementations give `base_name`, `expert_names`, `open`, `skeleton` and, where a merge is saved with more than its
    weights (a config, a tokenizer), `save`.
    """

    _config_key = "modelpool"

    @property
    @abstractmethod
    def base_name(self) -> str | None:
        """The base model's name, or None."""

    @property
    @abstractmethod
    def expert_names(self) -> tuple[str, ...]:
        """The experts' names, in order."""

    @abstractmethod
    def open(self, name: str) -> Checkpoint:
        """The lazy weights of a model that the pool has."""

    @abstractmethod
    def skeleton(self) -> nn.Module:
        """A model of the pool's architecture, in evaluation mode, whose weights do not matter."""

    @property
    def runnable(self) -> bool:
        """Whether models can be built of weights, which merging and saving does not need."""
        return True

    @property
    def names(self) -> tuple[str, ...]:
        """All models, the base first."""
        base = () if self.base_name is None else (self.base_name,)
        return (*base, *self.expert_names)

    def checkpoint(self, name: str) -> Checkpoint:
        """The lazy weights of a model.

        Raises:
            ConfigError: the pool has no such model.
        """
        if name not in self.names:
            raise ConfigError(
                Fault("modelpool", f"no model '{name}'", f"one of {listed(self.names)}", did_you_mean(name, self.names))
            )
        return self.open(name)

    def load(self, name: str) -> nn.Module:
        """A model, newly built, in evaluation mode."""
        return self.build(self.checkpoint(name))

    def build(self, checkpoint: Mapping[str, Tensor]) -> nn.Module:
        """A model in evaluation mode with these weights; no weight is left as the skeleton had it."""
        from fusion_eval.modelpool.loading import load_into

        return load_into(self.skeleton(), checkpoint)

    def aligned(self, seed: int = 0) -> AlignedPool:
        """The pool's checkpoints side by side, checked for equal names and shapes.

        Raises:
            AlignmentError: listing the tensors that differ.
        """
        base, experts = self._opened()
        return AlignedPool(base, experts, seed)

    def head(self, task: str) -> nn.Module | None:
        """The module from the model's features to a task's logits, or None where the model itself gives logits."""
        return None

    def faults(self) -> list[Fault]:
        """What is wrong with the pool, found without reading a weight."""
        return alignment_faults(*self._opened())

    def notes(self) -> list[str]:
        """What a reader of a merge of this pool must know, such as experts that do not descend from the base."""
        return []

    def save(self, checkpoint: Checkpoint, folder: Path, **details: Any) -> None:
        """Write a merge into a folder, as safetensors; either the whole folder appears or nothing.

        Args:
            checkpoint: the merge.
            folder: the target.
            **details: keywords of `save_checkpoint`, and `record`, how the merge was made.
        """
        from fusion_eval.merge.sinks import save_checkpoint

        record = details.pop("record", None)
        sources = {name: self.checkpoint(name).source for name in self.names}

        def finish(partial: Path) -> None:
            if record is not None:
                record.describe(partial, sources, checkpoint.source)

        save_checkpoint(checkpoint, folder, **{"finish": finish, **details})

    def _opened(self) -> tuple[Checkpoint | None, dict[str, Checkpoint]]:
        base = None if self.base_name is None else self.checkpoint(self.base_name)
        return base, {name: self.checkpoint(name) for name in self.expert_names}
