"""Dense models as the experts of one mixture: Llama and Mistral checkpoints become a Mixtral, without training."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from fusion_eval.errors import CheckpointError, ConfigError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint, TensorSpec
from fusion_eval.merge.engine import alignment_faults
from fusion_eval.merge.recipe import DTYPES, ModelReference
from fusion_eval.merge.recipe_material import Material
from fusion_eval.merge.recipe_values import reference
from fusion_eval.merge.recipe_yaml import Item, Source
from fusion_eval.merge.sinks import save_checkpoint
from fusion_eval.merge.views import Composed, Part, cast
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.modelpool.gates import MODES, gate_rows
from fusion_eval.modelpool.recipe_files import write_files
from fusion_eval.modelpool.recipe_pool import built_model, material_at, place_of

_KEYS: Final = ("base_model", "gate_mode", "dtype", "experts_per_token", "experts")
_EXPERT: Final = ("source_model", "positive_prompts", "negative_prompts")
_PARTS: Final = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_DENSE: Final = ("llama", "mistral")


@dataclass(frozen=True, slots=True)
class Expert:
    """A dense model and the prompts that it is for."""

    model: ModelReference
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MixtureRecipe:
    """mergekit-moe's YAML."""

    base: ModelReference
    experts: tuple[Expert, ...]
    gates: str
    per_token: int
    dtype: str | None


def read_mixture(path: Path) -> MixtureRecipe:
    """The recipe in a file.

    Raises:
        ConfigError: with every fault of the file.
    """
    source = Source(str(path))
    try:
        documents = source.documents(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(Fault("modelpool.path", f"{path} cannot be read ({error.strerror})", "a recipe")) from error
    if len(documents) != 1:
        raise ConfigError(Fault(str(path), f"{len(documents)} documents", "one"))
    entries = source.keys(documents[0], _KEYS, "a mixture")
    base = reference(source, entries.get("base_model"), "base_model")
    gates = source.choice(entries["gate_mode"], MODES, "gate_mode") if "gate_mode" in entries else "hidden"
    dtype = source.choice(entries["dtype"], DTYPES, "dtype") if "dtype" in entries else None
    items = source.items(entries["experts"], "experts") if "experts" in entries else []
    experts = [expert for item in items if (expert := _expert(source, item, gates)) is not None]
    per_token = entries["experts_per_token"].value if "experts_per_token" in entries else 2
    if base is None:
        source.fault(documents[0], "no 'base_model'", "the model that gives all but the experts")
    if len(items) < 2:
        source.fault(entries.get("experts", documents[0]), f"{len(items)} experts", "at least two")
    if "experts_per_token" in entries and (type(per_token) is not int or not 1 <= per_token <= max(1, len(items))):
        source.fault(entries["experts_per_token"], f"experts_per_token is {per_token!r}", f"1 to {len(items)}")
    source.raise_faults()
    assert base is not None
    return MixtureRecipe(base, tuple(experts), gates, per_token, dtype)


def _expert(source: Source, item: Item, gates: str) -> Expert | None:
    entries = source.keys(item, _EXPERT, "an expert")
    model = reference(source, entries.get("source_model"), "source_model")
    if model is None:
        source.fault(item, "no 'source_model'", "a folder or a hub id")
        return None
    positive, negative = (_prompts(source, entries.get(key)) for key in _EXPERT[1:])
    if not positive and not gates.endswith("random"):
        source.fault(item, f"no positive_prompts, which gate_mode {gates} needs", "texts that the expert is for")
    return Expert(model, positive, negative)


def _prompts(source: Source, item: Item | None) -> tuple[str, ...]:
    return () if item is None else tuple(source.text(each, "a prompt") for each in source.items(item, "prompts"))


class Gates(Checkpoint):
    """The routers' weights, computed together when the first one is read."""

    def __init__(self, names: Sequence[str], spec: TensorSpec, make: Callable[[], Sequence[Tensor]]) -> None:
        self._names, self._spec, self._make = tuple(names), spec, make

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self._make(), strict=True))

    def read(self, name: str) -> Tensor:
        """One layer's router (experts, hidden)."""
        return self._rows[name].to(self._spec.dtype)

    def spec(self, name: str) -> TensorSpec:
        """(experts, hidden)."""
        return self._spec

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
        base = material_at(place_of(recipe.base.path, recipe.base.revision, self.path))
        experts = [material_at(place_of(e.model.path, e.model.revision, self.path)).checkpoint for e in recipe.experts]
        named = {
            f"{index}: {expert.model}": c for index, (expert, c) in enumerate(zip(recipe.experts, experts, strict=True))
        }
        faults = alignment_faults(base.checkpoint, named) or _dense_faults(base, self.path)
        if faults:
            raise CheckpointError(*faults)
        layers = int(base.config["num_hidden_layers"])
        hidden = int(base.config["hidden_size"])
        names = [f"model.layers.{layer}.block_sparse_moe.gate.weight" for layer in range(layers)]
        dtype = next(base.checkpoint.spec(name).dtype for name in base.checkpoint)
        gates = Gates(names, TensorSpec((len(experts), hidden), dtype), lambda: self._gates(base))
        made: Checkpoint = Composed(_parts(base.checkpoint, experts, gates), f"a mixture of {len(experts)} experts")
        if recipe.dtype is not None:
            made = cast(made, getattr(torch, recipe.dtype))
        config = mixture_config(base.config, len(experts), recipe.per_token)
        if recipe.dtype is not None:
            config["torch_dtype"] = recipe.dtype
            config.pop("dtype", None)
        return Material(made, config, base.generation, base.tokenizer, base.origin)

    def _gates(self, base: Material) -> Sequence[Tensor]:
        recipe, layers = self.recipe, int(base.config["num_hidden_layers"])
        if recipe.gates.endswith("random"):
            shape = (len(recipe.experts), int(base.config["hidden_size"]))
            return [_random(shape, f"{self._seed}/{layer}", recipe.gates) for layer in range(layers)]
        model = built_model(base, str(self.path))
        prompts = [(expert.positive, expert.negative) for expert in recipe.experts]
        assert base.origin is not None
        return gate_rows(model, base.origin, prompts, recipe.gates, layers)

    def open(self, name: str) -> Checkpoint:
        """The lazy weights of the mixture."""
        return self._material.checkpoint

    def build(self, checkpoint: Mapping[str, Tensor]) -> nn.Module:
        """A Mixtral with these weights."""
        weights = checkpoint if isinstance(checkpoint, Checkpoint) else StateDictCheckpoint(checkpoint)
        made = self._material
        return built_model(Material(weights, made.config, made.generation, None, made.origin), str(self.path))

    def skeleton(self) -> nn.Module:
        """A Mixtral without weights."""
        raise ConfigError(Fault("modelpool", "a mixture has no skeleton of its own", "build with weights"))

    def save(self, checkpoint: Checkpoint, folder: Path, **details: Any) -> None:
        """Write a folder that `from_pretrained` loads."""
        record, made = details.pop("record", None), self._material
        sources = {f"expert {index}": str(expert.model) for index, expert in enumerate(self.recipe.experts)}
        sources = {"base": str(self.recipe.base), **sources}

        def finish(partial: Path) -> None:
            write_files(partial, made, sources, checkpoint.source, record)

        save_checkpoint(checkpoint, folder, **{"finish": finish, **details})


def _dense_faults(base: Material, path: Path) -> list[Fault]:
    kind = base.config.get("model_type")
    if kind not in _DENSE:
        return [Fault(str(path), f"a base model of type '{kind}'", f"one of {', '.join(_DENSE)}")]
    biases = [name for name in base.checkpoint if name.endswith(".bias")]
    return [Fault(str(path), f"biases, which a Mixtral lacks: {listed(biases)}", "a model without")] if biases else []


def _parts(base: Checkpoint, experts: Sequence[Checkpoint], gates: Checkpoint) -> dict[str, Part]:
    """Every tensor of the mixture: the base's, but for feed-forward layers, one router each and the experts'."""
    parts: dict[str, Part] = {}
    for name in base:
        head, _, rest = name.partition(".mlp.")
        if not rest:
            parts[name] = Part(base, name)
            continue
        piece = _PARTS[rest.partition(".")[0]]
        gate = f"{head}.block_sparse_moe.gate.weight"
        parts[gate] = Part(gates, gate)
        for index, expert in enumerate(experts):
            parts[f"{head}.block_sparse_moe.experts.{index}.{piece}.weight"] = Part(expert, name)
    return parts


def mixture_config(dense: Mapping[str, Any], experts: int, per_token: int) -> dict[str, Any]:
    """A Mixtral's config with a dense model's sizes."""
    left = ("architectures", "model_type", "mlp_bias", "attention_bias", "pretraining_tp", "transformers_version")
    return {
        **{key: value for key, value in dense.items() if key not in left},
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": per_token,
        "sliding_window": dense.get("sliding_window"),
    }


def _random(shape: tuple[int, int], key: str, mode: str) -> Tensor:
    """A router that prefers no expert, the same on every run."""
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    if mode == "uniform_random":
        return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(shape[1])
    return torch.randn(shape, generator=generator) * 0.02
