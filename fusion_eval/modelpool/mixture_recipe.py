"""mergekit-moe's YAML: which dense models become the experts of a mixture, and how its routers are made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.recipe import DTYPES, ModelReference
from fusion_eval.merge.recipe_values import reference
from fusion_eval.merge.recipe_yaml import Item, Source
from fusion_eval.modelpool.gates import MODES
from fusion_eval.modelpool.mixture_target import NAMES

_KEYS: Final = ("base_model", "architecture", "gate_mode", "dtype", "experts_per_token", "experts", "shared_experts")
_EXPERT: Final = ("source_model", "positive_prompts", "negative_prompts", "residual_scale", "noise_scale")


@dataclass(frozen=True, slots=True)
class Expert:
    """A dense model and the prompts that it is for.

    Args:
        model: where it is.
        positive: prompts that it is for.
        negative: prompts that it is not for.
        residual: what its answers are multiplied with.
        noise: the standard deviation of what is added to its feed-forward weights.
    """

    model: ModelReference
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    residual: float = 1.0
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class MixtureRecipe:
    """mergekit-moe's YAML, and `architecture`: what to build where the dense models' kind leaves a choice."""

    base: ModelReference
    experts: tuple[Expert, ...]
    shared: Expert | None
    gates: str
    per_token: int
    dtype: str | None
    architecture: str | None

    @property
    def all_experts(self) -> tuple[Expert, ...]:
        """The routed experts, then the shared one."""
        return self.experts if self.shared is None else (*self.experts, self.shared)


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
    gates = _choice(source, entries, "gate_mode", MODES)
    dtype, architecture = (_choice(source, entries, *each) for each in (("dtype", DTYPES), ("architecture", NAMES)))
    experts = _experts(source, entries, "experts", gates or "hidden")
    shared = _experts(source, entries, "shared_experts", "random")
    per_token = _per_token(source, entries)
    if base is None:
        source.fault(documents[0], "no 'base_model'", "the model that gives all but the experts")
    if len(experts) < 2:
        source.fault(entries.get("experts", documents[0]), f"{len(experts)} experts", "at least two")
    if len(shared) > 1:
        source.fault(entries["shared_experts"], f"{len(shared)} shared experts", "one at most")
    kept = tuple(expert for expert in experts if expert is not None)
    if len({(expert.positive, expert.negative) for expert in kept}) == 1 and not (gates or "").endswith("random"):
        found, do = "the same prompts for all experts, so that the routers prefer none", "Say gate_mode: random."
        source.fault(entries["experts"], found, "prompts that tell the experts apart", do)
    source.raise_faults()
    assert base is not None
    name = None if architecture is None else NAMES[architecture]
    return MixtureRecipe(base, kept, next(iter(shared), None), gates or "hidden", per_token, dtype, name)


def _choice(source: Source, entries: dict[str, Item], key: str, options: Iterable[str]) -> str | None:
    return source.choice(entries[key], options, key) if key in entries else None


def _per_token(source: Source, entries: dict[str, Item]) -> int:
    if "experts_per_token" not in entries:
        return 2
    item = entries["experts_per_token"]
    listed = entries["experts"].value if "experts" in entries else []
    most = max(1, len(listed)) if isinstance(listed, list) else 1
    if type(item.value) is int and 1 <= item.value <= most:
        return item.value
    source.fault(item, f"experts_per_token is {item.value!r}", f"1 to {most}")
    return 1


def _experts(source: Source, entries: dict[str, Item], key: str, gates: str) -> list[Expert | None]:
    """One for each item; None for those with faults."""
    return [_expert(source, item, gates) for item in source.items(entries[key], key)] if key in entries else []


def _expert(source: Source, item: Item, gates: str) -> Expert | None:
    entries = source.keys(item, _EXPERT, "an expert")
    model = reference(source, entries.get("source_model"), "source_model")
    if model is None:
        source.fault(item, "no 'source_model'", "a folder or a hub id")
        return None
    positive, negative = (_prompts(source, entries.get(key)) for key in _EXPERT[1:3])
    if not positive and not gates.endswith("random"):
        source.fault(item, f"no positive_prompts, which gate_mode {gates} needs", "texts that the expert is for")
    residual, noise = (_number(source, entries, *each) for each in (("residual_scale", 1.0), ("noise_scale", 0.0)))
    return Expert(model, positive, negative, residual, noise)


def _prompts(source: Source, item: Item | None) -> tuple[str, ...]:
    items = [] if item is None or item.value is None else source.items(item, "prompts")
    for each in items:
        if not isinstance(each.value, str):
            source.fault(each, f"a prompt is {each.kind()}", "a text")
    return tuple(str(each.value) for each in items)


def _number(source: Source, entries: dict[str, Item], key: str, default: float) -> float:
    value = entries[key].value if key in entries else None
    if value is None:
        return default
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    source.fault(entries[key], f"{key} is {entries[key].kind()}", "a finite number")
    return default
