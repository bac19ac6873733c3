"""The mixtures that dense models can become: the names of their tensors and the keys of their config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fusion_eval.errors import ConfigError, Fault, did_you_mean, missing_dependency
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.views import Part
from fusion_eval.modelpool.mixture_weights import IDLE

_LEFT: Final = frozenset(
    {"architectures", "model_type", "mlp_bias", "pretraining_tp", "transformers_version", "layer_types"}
)
_QKV: Final = tuple(f".self_attn.{letter}_proj.bias" for letter in "qkv")


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture whose feed-forward layers are mixtures.

    Args:
        class_name: its class.
        dense: the model types whose other layers it has.
        block: the name of a mixture in a layer.
        pieces: what an expert calls a dense layer's matrices.
        biases: the ends of the names of the biases that it has.
        shared: the name of the expert that sees every token in a block, or `` where it has none.
        gated: whether that one has a gate of its own, and is always there.
        config: its own config keys, from a dense config with nothing left to defaults, the number of experts, and
            whether there is a shared one.
        code: the file of this package that defines the class, where transformers does not.
    """

    class_name: str
    dense: tuple[str, ...]
    block: str
    pieces: Mapping[str, str]
    biases: tuple[str, ...]
    shared: str
    gated: bool
    config: Callable[[Mapping[str, Any], int, bool], dict[str, Any]]
    code: str = ""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where the tensors of a mixture's feed-forward layers come from.

    Args:
        experts: the routed experts, under a dense model's names.
        gates: their routers, under the mixture's names.
        shared: the shared expert, under a dense model's names, or None.
        shared_gates: its gates, under the mixture's names, or None.
    """

    experts: Sequence[Checkpoint]
    gates: Checkpoint
    shared: Checkpoint | None = None
    shared_gates: Checkpoint | None = None


def _mixtral(dense: Mapping[str, Any], experts: int, shared: bool) -> dict[str, Any]:
    return {"num_local_experts": experts, "sliding_window": dense.get("sliding_window")}


def _qwen(dense: Mapping[str, Any], experts: int) -> dict[str, Any]:
    return {
        "num_experts": experts,
        "moe_intermediate_size": dense["intermediate_size"],
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _layer_types(dense: Mapping[str, Any]) -> list[str]:
    """The attention of each layer; Mistral's is sliding in all where a window is said, Llama's in none."""
    whole = "sliding_attention" if dense.get("sliding_window") else "full_attention"
    return list(dense.get("layer_types") or [whole] * int(dense["num_hidden_layers"]))


def _qwen2_moe(dense: Mapping[str, Any], experts: int, shared: bool) -> dict[str, Any]:
    layers = _layer_types(dense)
    return {
        **_qwen(dense, experts),
        "qkv_bias": dense["model_type"] == "qwen2",
        "layer_types": layers,
        "use_sliding_window": "sliding_attention" in layers,
        "shared_expert_intermediate_size": dense["intermediate_size"] if shared else IDLE,
    }


def _qwen3_moe(dense: Mapping[str, Any], experts: int, shared: bool) -> dict[str, Any]:
    kinds = set(_layer_types(dense))
    if len(kinds) > 1:
        found = "a sliding window in some layers only, which a Qwen3-MoE cannot say"
        raise ConfigError(Fault("base_model", found, "one in all or in none"))
    return {**_qwen(dense, experts), "use_sliding_window": kinds == {"sliding_attention"}}


def _deepseek(dense: Mapping[str, Any], experts: int, shared: bool) -> dict[str, Any]:
    if "sliding_attention" in _layer_types(dense):
        raise ConfigError(Fault("base_model", "a sliding window, which a DeepSeek-MoE lacks", "a model without"))
    module = Path(DEEPSEEK).stem
    classes = {"AutoConfig": "DeepseekConfig", "AutoModelForCausalLM": "DeepseekForCausalLM"}
    return {
        "n_routed_experts": experts,
        "n_shared_experts": 1 if shared else None,
        "moe_intermediate_size": dense["intermediate_size"],
        "norm_topk_prob": True,
        "scoring_func": "softmax",
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "auto_map": {auto: f"{module}.{name}" for auto, name in classes.items()},
    }


DEEPSEEK: Final = "deepseek_moe.py"
_OWN: Final = {name: name for name in ("gate_proj", "down_proj", "up_proj")}
_MIXTRAL: Final = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}

TARGETS: Final[Mapping[str, Target]] = MappingProxyType(
    {
        "mixtral": Target(
            "MixtralForCausalLM", ("llama", "mistral"), "block_sparse_moe", _MIXTRAL, (), "", False, _mixtral
        ),
        "deepseek": Target(
            "DeepseekForCausalLM",
            ("llama", "mistral"),
            "mlp",
            _OWN,
            (),
            "shared_experts",
            False,
            _deepseek,
            DEEPSEEK,
        ),
        "qwen2_moe": Target(
            "Qwen2MoeForCausalLM",
            ("qwen2", "llama", "mistral"),
            "mlp",
            _OWN,
            _QKV,
            "shared_expert",
            True,
            _qwen2_moe,
        ),
        "qwen3_moe": Target(
            "Qwen3MoeForCausalLM", ("qwen3",), "mlp", _OWN, (*_QKV, ".self_attn.o_proj.bias"), "", False, _qwen3_moe
        ),
    }
)
"""By model type; a dense model becomes the first that is made from its kind and has what the recipe asks for."""

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {**{name: name for name in TARGETS}, "qwen": "qwen2_moe", "qwen3": "qwen3_moe"}
)
"""What a recipe may say of an architecture, mergekit-moe's names among them, and the model type."""


def target_name(dense: str | None, said: str | None, shared: bool, where: str) -> str:
    """The model type of the mixture that dense models of a type become.

    Raises:
        ConfigError: there is none, or the one that is said cannot be made from them or has no shared expert.
    """
    known = sorted({kind for target in TARGETS.values() for kind in target.dense})
    fitting = [name for name, target in TARGETS.items() if dense in target.dense]
    if not fitting:
        hint = did_you_mean(str(dense), known)
        raise ConfigError(Fault(where, f"a base model of type '{dense}'", f"one of {', '.join(known)}", hint))
    if said is not None and said not in fitting:
        raise ConfigError(Fault(where, f"architecture {said} of '{dense}' models", f"one of {', '.join(fitting)}"))
    able = [each for each in fitting if TARGETS[each].shared]
    name = said or (able if shared and able else fitting)[0]
    if shared and not TARGETS[name].shared:
        do = f"Say architecture: {able[0]}." if able else "Leave shared_experts out."
        raise ConfigError(Fault(where, f"shared_experts, which a {name} lacks", "an architecture with one", do))
    return name


def mixture_parts(target: Target, base: Checkpoint, pieces: Pieces) -> dict[str, Part]:
    """Every tensor of the mixture: the base's, but for feed-forward layers, whose are made from the pieces."""
    parts: dict[str, Part] = {}
    for name in base:
        head, _, rest = name.partition(".mlp.")
        if not rest:
            parts[name] = Part(base, name)
            continue
        block, matrix = f"{head}.{target.block}", rest.partition(".")[0]
        gate, shared_gate = f"{block}.gate.weight", f"{block}.shared_expert_gate.weight"
        parts[gate] = Part(pieces.gates, gate)
        for index, expert in enumerate(pieces.experts):
            parts[f"{block}.experts.{index}.{target.pieces[matrix]}.weight"] = Part(expert, name)
        if pieces.shared is not None:
            parts[f"{block}.{target.shared}.{matrix}.weight"] = Part(pieces.shared, name)
        if pieces.shared_gates is not None:
            parts[shared_gate] = Part(pieces.shared_gates, shared_gate)
    return parts


def mixture_config(name: str, dense: Mapping[str, Any], counts: tuple[int, int], shared: bool) -> dict[str, Any]:
    """A mixture's config with a dense model's sizes; what the dense config leaves to its class's defaults is said.

    Args:
        name: the mixture's model type.
        dense: the dense model's config.
        counts: the number of experts, and of those that a token sees.
        shared: whether there is a shared expert.

    Raises:
        MissingDependencyError: transformers, which knows the defaults, is not installed.
    """
    target, whole = TARGETS[name], _resolved(dense)
    left = _LEFT if target.biases else _LEFT | {"attention_bias"}
    own = {
        "architectures": [target.class_name],
        "model_type": name,
        "num_experts_per_tok": counts[1],
        **target.config(whole, counts[0], shared),
    }
    kept = {key: value for key, value in dense.items() if key not in left}
    implied = {key: value for key, value in _implied(name, dense, whole).items() if key not in left | {"dtype"}}
    return {**implied, **kept, **own}


def _resolved(dense: Mapping[str, Any]) -> dict[str, Any]:
    """A config with its class's defaults."""
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise missing_dependency("transformers", "huggingface", "configs of mixtures") from error
    config: dict[str, Any] = AutoConfig.for_model(**dense).to_dict()
    return config


def _implied(name: str, dense: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """What a dense config does not say and the mixture's class would suppose otherwise: Mixtral a rope_theta of 1e6."""
    other = _resolved({"model_type": "llama" if TARGETS[name].code else name})
    found = {key: value for key, value in whole.items() if key not in dense and value != other.get(key)}
    rope = found.pop("rope_parameters", None)
    if rope and "rope_theta" not in dense and "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
    return found
