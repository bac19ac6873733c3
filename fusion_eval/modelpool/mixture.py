"""Dense models as the experts of one mixture, without training: Mixtral, DeepSeek-MoE, Qwen2-MoE, Qwen3-MoE."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fusion_eval.errors import CheckpointError, ConfigError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint, TensorSpec
from fusion_eval.merge.engine import alignment_faults
from fusion_eval.merge.recipe import ModelReference
from fusion_eval.merge.recipe_material import Material
from fusion_eval.merge.sinks import save_checkpoint
from fusion_eval.merge.views import Composed, cast
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.modelpool.gates import gate_rows
from fusion_eval.modelpool.mixture_recipe import MixtureRecipe, read_mixture
from fusion_eval.modelpool.mixture_target import TARGETS, Pieces, mixture_config, mixture_parts, target_name
from fusion_eval.modelpool.mixture_weights import Gates, Zeros, expert_weights, idle_spec, random_rows
from fusion_eval.modelpool.recipe_files import write_files
from fusion_eval.modelpool.recipe_pool import built_model, material_at, place_of


@final
class MixturePool(BaseModelPool):
    """A pool of one model, `mixture`: the experts' feed-forward layers behind routers, all else of the base.

    `method=passthrough` saves and evaluates it. Sparse upcycling: arXiv:2212.05055; routers from hidden states of
    prompts: no paper (mergekit-moe).

    Args:
        path: mergekit-moe's YAML.
        seed: of random routers.
    """

    def __init__(self, path: str, seed: int = 0) -> None:
        super().__init__()
        self.path, self._seed = Path(path).expanduser(), seed

    @property
    def base_name(self) -> str | None:
        """None."""
        return None

    @property
    def expert_names(self) -> tuple[str, ...]:
        """`mixture` alone."""
        return ("mixture",)

    @cached_property
    def recipe(self) -> MixtureRecipe:
        """The recipe."""
        return read_mixture(self.path)

    @cached_property
    def _material(self) -> Material:
        recipe = self.recipe
        base = self._read(recipe.base)
        name = target_name(
            base.config.get("model_type"), recipe.architecture, recipe.shared is not None, str(self.path)
        )
        experts = [self._read(expert.model).checkpoint for expert in recipe.all_experts]
        named = {f"{index}: {e.model}": c for index, (e, c) in enumerate(zip(recipe.all_experts, experts, strict=True))}
        faults = alignment_faults(base.checkpoint, named) or _bias_faults(base.checkpoint, name, self.path)
        if faults:
            raise CheckpointError(*faults)
        target, counts = TARGETS[name], (len(recipe.experts), recipe.per_token)
        if target.gated and recipe.shared and not (recipe.shared.positive or recipe.gates.endswith("random")):
            found = f"a shared expert without positive_prompts, which the gate of a {name} needs"
            raise ConfigError(Fault(str(self.path), found, "texts that it is for", "Or say gate_mode: random."))
        config = mixture_config(name, base.config, counts, recipe.shared is not None)
        pieces = self._pieces(base, name, experts)
        parts, source = mixture_parts(target, base.checkpoint, pieces), f"a mixture of {len(recipe.experts)} experts"
        made: Checkpoint = Composed(parts, source, base.checkpoint.tied)
        if recipe.dtype is not None:
            made = cast(made, getattr(torch, recipe.dtype))
            config["torch_dtype"] = recipe.dtype
            config.pop("dtype", None)
        return Material(made, config, base.generation, base.tokenizer, base.origin)

    def _read(self, model: ModelReference) -> Material:
        return material_at(place_of(model.path, model.revision, self.path))

    def _pieces(self, base: Material, name: str, dense: Sequence[Checkpoint]) -> Pieces:
        """What the feed-forward layers are made of; a shared expert that the recipe lacks is one of zeros."""
        recipe, target = self.recipe, TARGETS[name]
        count, hidden = len(recipe.experts), int(base.config["hidden_size"])
        dtype = next(base.checkpoint.spec(each).dtype for each in base.checkpoint)
        blocks = [f"model.layers.{layer}.{target.block}" for layer in range(int(base.config["num_hidden_layers"]))]
        experts = [
            expert_weights(checkpoint, expert.residual, expert.noise, f"{self._seed}/{index}")
            for index, (expert, checkpoint) in enumerate(zip(recipe.all_experts, dense, strict=True))
        ]
        names = [f"{block}.gate.weight" for block in blocks]
        gates = Gates(names, TensorSpec((count, hidden), dtype), lambda: [row[:count] for row in self._rows])
        if not target.gated:
            return Pieces(experts[:count], gates, None if recipe.shared is None else experts[-1])
        names, spec = [f"{block}.shared_expert_gate.weight" for block in blocks], TensorSpec((1, hidden), dtype)
        if recipe.shared is None:
            idle = Zeros({each: idle_spec(each, hidden, dtype) for each in base.checkpoint if ".mlp." in each})
            return Pieces(experts, gates, idle, Zeros(dict.fromkeys(names, spec)))
        return Pieces(experts[:-1], gates, experts[-1], Gates(names, spec, lambda: [row[count:] for row in self._rows]))

    @cached_property
    def _rows(self) -> Sequence[Tensor]:
        """For each layer the rows of the routed experts' router, then the shared expert's gate."""
        recipe, base = self.recipe, self._read(self.recipe.base)
        layers, hidden = int(base.config["num_hidden_layers"]), int(base.config["hidden_size"])
        if recipe.gates.endswith("random"):
            shapes = {
                "": (len(recipe.experts), hidden),
                "/shared": (len(recipe.all_experts[len(recipe.experts) :]), hidden),
            }
            keys = [f"{self._seed}/{layer}" for layer in range(layers)]
            return [
                torch.cat([random_rows(shape, key + end, recipe.gates) for end, shape in shapes.items()])
                for key in keys
            ]
        model = built_model(base, str(self.path))
        prompts = [(expert.positive, expert.negative) for expert in recipe.all_experts if expert.positive]
        assert base.origin is not None
        return gate_rows(model, base.origin, prompts, recipe.gates, layers)

    def open(self, name: str) -> Checkpoint:
        """The lazy weights of the mixture."""
        return self._material.checkpoint

    def build(self, checkpoint: Mapping[str, Tensor]) -> nn.Module:
        """The mixture with these weights."""
        weights = checkpoint if isinstance(checkpoint, Checkpoint) else StateDictCheckpoint(checkpoint)
        made = self._material
        return built_model(Material(weights, made.config, made.generation, None, made.origin), str(self.path))

    def skeleton(self) -> nn.Module:
        """A mixture without weights."""
        raise ConfigError(Fault("modelpool", "a mixture has no skeleton of its own", "build with weights"))

    def save(self, checkpoint: Checkpoint, folder: Path, **details: Any) -> None:
        """Write a folder that `from_pretrained` loads."""
        record, made = details.pop("record", None), self._material
        sources = {f"expert {index}": str(expert.model) for index, expert in enumerate(self.recipe.experts)}
        shared = {} if self.recipe.shared is None else {"shared expert": str(self.recipe.shared.model)}
        sources = {"base": str(self.recipe.base), **sources, **shared}

        def finish(partial: Path) -> None:
            write_files(partial, made, sources, checkpoint.source, record)
            code = TARGETS[made.config["model_type"]].code
            if code:
                shutil.copyfile(Path(__file__).with_name(code), partial / code)

        save_checkpoint(checkpoint, folder, **{"finish": finish, **details})


def _bias_faults(base: Checkpoint, name: str, path: Path) -> list[Fault]:
    had = TARGETS[name].biases
    biases = [each for each in base if each.endswith(".bias") and not each.endswith(had)]
    return [Fault(str(path), f"biases, which a {name} lacks: {listed(biases)}", "a model without")] if biases else []
