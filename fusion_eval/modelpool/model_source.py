"""Where one Hugging Face model is: a folder or hub id, pinned to a revision, perhaps with a LoRA adapter on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.modelpool.hub import model_folder

_FOREIGN_PATH = "pretrained_model_name_or_path"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's place.

    Args:
        path: a folder or a hub id.
        revision: commit, tag or branch of the hub repository.
        adapter: folder or hub id of a LoRA adapter that is added to the weights.
        adapter_revision: the adapter's commit, tag or branch.
        into: the submodule whose weights these are, where they are those of a part of the pool's models only.
    """

    path: str
    revision: str | None = None
    adapter: str | None = None
    adapter_revision: str | None = None
    into: str | None = None

    def folder(self, *, weights: bool = True) -> Path:
        """The model's files, without the adapter's."""
        return model_folder(self.path, self.revision, weights=weights)

    def adapter_folder(self) -> Path | None:
        """The adapter's files, or None where there is no adapter."""
        return None if self.adapter is None else model_folder(self.adapter, self.adapter_revision)


def model_source(given: Any, base: ModelSource | None = None) -> ModelSource:
    """The source that a string or a mapping describes; an adapter without a path is one of the base.

    Raises:
        ConfigError: the mapping has other keys, or neither path nor base.
    """
    if isinstance(given, ModelSource):
        return given
    if isinstance(given, str | PurePath):
        return ModelSource(str(given))
    if not isinstance(given, Mapping):
        raise ConfigError(Fault("", f"a {type(given).__name__}", "a folder, a hub id, or a mapping with path"))
    values = dict(given)
    if _FOREIGN_PATH in values:
        values["path"] = values.pop(_FOREIGN_PATH)
        values.pop("_target_", None)  # the pool's auto_class says what the weights are for
    known = [field.name for field in fields(ModelSource)]
    unknown = [key for key in values if key not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(Fault("", f"no key '{unknown[0]}'", f"some of {', '.join(known)}", hint))
    if "path" not in values:
        if base is None or "adapter" not in values:
            raise ConfigError(Fault("", "no path", "path, or adapter in a pool with a base"))
        values = {"path": base.path, "revision": base.revision, **values}
    return ModelSource(**values)


def sources_by_pattern(tasks: Any, pattern: str, base: Any) -> dict[str, str]:
    """Places of experts by task: `{task}` in the pattern is the task, `{model}` the last part of the base's name.

    Raises:
        ConfigError: tasks are no list, or the pattern has other fields.
    """
    if isinstance(tasks, str | Mapping) or not isinstance(tasks, Sequence):
        raise ConfigError(Fault("modelpool.experts", f"a {type(tasks).__name__}", "a list of tasks, beside pattern"))
    model = "" if base is None else model_source(base).path.rstrip("/").rpartition("/")[2]
    try:
        named = {str(task): pattern.format(task=task, model=model) for task in tasks}
    except (KeyError, IndexError) as error:
        raise ConfigError(Fault("modelpool.pattern", f"'{pattern}'", "{task} and perhaps {model} in it")) from error
    if "{task}" not in pattern:
        raise ConfigError(Fault("modelpool.pattern", f"'{pattern}'", "{task} and perhaps {model} in it"))
    return named
