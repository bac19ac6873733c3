"""The model pool of a recipe: the models that it names, and the merge's config, tokenizer and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from fusion_eval.errors import CheckpointError, ConfigError, Fault, FusionEvalError
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.lora import adapted
from fusion_eval.merge.recipe import ModelReference
from fusion_eval.merge.recipe_book import RecipeBook
from fusion_eval.merge.recipe_material import Material
from fusion_eval.merge.recipe_reader import read_recipe
from fusion_eval.merge.sinks import save_checkpoint
from fusion_eval.merge.tokenizer import read_tokenizer
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.modelpool.hub import model_folder
from fusion_eval.modelpool.recipe_files import write_files
from fusion_eval.modelpool.skeletons import built, described


def recipe_pool(
    path: str | None = None,
    auto_class: str | None = None,
    skeleton: Mapping[str, Any] | None = None,
    unknown: str = "error",
) -> BaseModelPool:
    """The pool of the models that a recipe names; for a recipe of ours, the pool that it describes.

    Args:
        path: the recipe.
        auto_class: the class of transformers that runs the models; None: the one that their config names.
        skeleton: a node that builds the architecture of models without a config.
        unknown: `error`, or `ignore`: keys of the recipe that nobody knows have no effect.

    Raises:
        ConfigError: with every fault of the file.
    """
    if path is None:
        raise ConfigError(Fault("modelpool.path", "no recipe", "a file", "Use it as method=recipe method.path=..."))
    file = read_recipe(path, unknown)
    if not file.own:
        return RecipePool(path, auto_class, skeleton, unknown)
    from fusion_eval.build import build

    if "modelpool" not in file.own:
        found, do = "names no models: they were in memory", "Add a modelpool with the models whose hashes it lists."
        raise ConfigError(Fault(path, found, "a recipe with 'modelpool'", do))
    pool = build(file.own["modelpool"], _key_="modelpool")
    if not isinstance(pool, BaseModelPool):
        raise ConfigError(Fault("modelpool", f"a {type(pool).__name__}", "a model pool"))
    return pool


@final
class RecipePool(BaseModelPool):
    """The models of a mergekit recipe.

    Paths are looked for from the working directory, then beside the recipe, then on the hub. The base is the last
    document's; the experts are all other models, by the last part of their names.

    Args:
        path: the recipe.
        auto_class: the class of transformers that runs the models; None: the one that their config names.
        skeleton: a node that builds the architecture of models without a config.
        unknown: `error`, or `ignore`: keys of the recipe that nobody knows have no effect.
    """

    def __init__(
        self,
        path: str,
        auto_class: str | None = None,
        skeleton: Mapping[str, Any] | None = None,
        unknown: str = "error",
    ) -> None:
        super().__init__()
        self.path, self._auto_class, self._node = Path(path).expanduser(), auto_class, skeleton
        self._unknown = unknown

    @cached_property
    def book(self) -> RecipeBook:
        """The recipe with its models."""
        return RecipeBook(read_recipe(self.path, self._unknown), self._open_model)

    @cached_property
    def _outline(self) -> Material:
        return self.book.outline()

    @cached_property
    def _references(self) -> dict[str, ModelReference]:
        found: dict[str, ModelReference] = {}
        base = self.book.final.base
        refs = self.book.models()
        if base is not None and base in refs:
            found["base"] = base
        for ref in refs:
            if ref != base:
                short = str(ref).rstrip("/").rpartition("/")[2]
                found[short if short not in found else str(ref)] = ref
        return found

    @property
    def base_name(self) -> str | None:
        """`base`, or None in a recipe without a base model."""
        return "base" if "base" in self._references else None

    @property
    def expert_names(self) -> tuple[str, ...]:
        """The other models."""
        return tuple(name for name in self._references if name != "base")

    def open(self, name: str) -> Checkpoint:
        """The lazy weights of a model."""
        return self.book.material(self._references[name]).checkpoint

    def load(self, name: str) -> nn.Module:
        """A model, by its own config."""
        return self._built(self.book.material(self._references[name]))

    def build(self, checkpoint: Mapping[str, Tensor]) -> nn.Module:
        """The merge's model with these weights."""
        weights = checkpoint if isinstance(checkpoint, Checkpoint) else StateDictCheckpoint(checkpoint)
        outline = self._outline
        return self._built(Material(weights, outline.config, outline.generation, None, outline.origin))

    def skeleton(self) -> nn.Module:
        """The merge's architecture, without weights."""
        return self._skeleton(self._outline)

    def faults(self) -> list[Fault]:
        """What is wrong with the recipe or its models, but for the method's parameters."""
        try:
            return self.book.faults(lambda segment: ())
        except FusionEvalError as error:
            return list(error.faults)

    def notes(self) -> list[str]:
        """What has no effect."""
        return list(self.book.file.notes)

    def save(self, checkpoint: Checkpoint, folder: Path, **details: Any) -> None:
        """Write a folder that `from_pretrained` loads, with tokenizer, chat template, model card and recipe."""
        record = details.pop("record", None)
        outline = self._outline
        sources = {name: str(ref) for name, ref in self._references.items()}

        def finish(partial: Path) -> None:
            write_files(partial, outline, sources, checkpoint.source, record)

        save_checkpoint(checkpoint, folder, **{"finish": finish, **details})

    def _open_model(self, ref: ModelReference, earlier: Material | None) -> Material:
        try:
            if earlier is not None:
                return self._with_adapter(earlier, ref)
            place = self._place(ref.path, ref.revision)
            opened = material_at(place)
            return opened if ref.adapter is None else self._with_adapter(opened, ref)
        except FusionEvalError as error:
            where = f"{self.path}, model '{ref}'"
            raise type(error)(
                *(Fault(f"{where} ({f.where})", f.found, f.expected, f.do) for f in error.faults)
            ) from error

    def _with_adapter(self, material: Material, ref: ModelReference) -> Material:
        assert ref.adapter is not None
        folder = self._place(ref.adapter, ref.adapter_revision)
        merged = adapted(material.checkpoint, [folder])
        return Material(merged, material.config, material.generation, material.tokenizer, material.origin)

    def _place(self, path: str, revision: str | None) -> Path:
        return place_of(path, revision, self.path)

    def _skeleton(self, material: Material) -> nn.Module:
        return built(self._node) if self._node is not None else _skeleton_of(material, self._auto_class, str(self.path))

    def _built(self, material: Material) -> nn.Module:
        return _loaded(self._skeleton(material), material.checkpoint)


def place_of(path: str, revision: str | None, recipe: Path) -> Path:
    """Where a model is: from the working directory, beside the recipe, or on the hub."""
    local = Path(path).expanduser()
    for candidate in (local, recipe.parent / local):
        if candidate.exists():
            return candidate
    return model_folder(path, revision)


def built_model(material: Material, where: str) -> nn.Module:
    """The model with a material's config and weights.

    Raises:
        ConfigError: its config names no class of transformers.
    """
    return _loaded(_skeleton_of(material, None, where), material.checkpoint)


def _skeleton_of(material: Material, auto_class: str | None, where: str) -> nn.Module:
    from fusion_eval.modelpool.transformers_model import generation_config, model_class, weightless_model

    name = auto_class or next(iter(material.config.get("architectures") or ()), None)
    if material.origin is None or name is None:
        do = "Set modelpool.skeleton to a node that builds the architecture."
        raise ConfigError(Fault(where, "models without a config.json that names their class", do=do))
    cls: Any = model_class(name)
    from transformers import AutoConfig

    kind = getattr(cls, "config_class", None)
    config: Any = AutoConfig.for_model(**material.config) if kind is None else kind.from_dict(dict(material.config))
    model = weightless_model(cls, config)
    generation_config(model, material.origin)
    return model


def _loaded(model: nn.Module, weights: Checkpoint) -> nn.Module:
    from fusion_eval.modelpool.fused import fuses_weights, load_fused
    from fusion_eval.modelpool.loading import load_into
    from fusion_eval.modelpool.names import match_names, transformers_renaming, under_model_names

    if fuses_weights(model, weights):
        return load_fused(model, weights)
    match = match_names(described(model), weights, transformers_renaming(model))
    return load_into(model, under_model_names(weights, match, keep_rest=True))


def material_at(place: Path) -> Material:
    """A model in a folder, or in a file."""
    if not place.is_dir():
        return Material(open_checkpoint(place))
    config = _json(place / "config.json") or {}
    if config.get("quantization_config"):
        found, do = "a quantised model", "Merge the original, or dequantise it and save it again."
        raise CheckpointError(Fault(str(place / "config.json"), found, "weights in a floating dtype", do))
    generation = _json(place / "generation_config.json")
    return Material(open_checkpoint(place), config, generation, read_tokenizer(place), place)


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(Fault(str(path), f"cannot be read ({error})", "JSON")) from error
    if not isinstance(found, dict):
        raise CheckpointError(Fault(str(path), f"a {type(found).__name__}", "a JSON object"))
    return found
