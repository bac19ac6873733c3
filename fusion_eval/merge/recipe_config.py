"""The config, generation config and chat template of a merge: the donor's, with what the merge changed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from fusion_eval.errors import ConfigError, Fault, did_you_mean
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.layers import layer_counts
from fusion_eval.merge.recipe import ModelReference, Recipe
from fusion_eval.merge.recipe_material import Material
from fusion_eval.merge.recipe_vocabulary import vocabulary_axes
from fusion_eval.merge.tokenizer import Tokenizer

_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_INNER: Final = ("text_config", "vision_config", "encoder", "decoder")
_IDS: Final = ("bos", "eos", "pad")

_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ALPACA: Final = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'user' %}### Instruction:\n{{ message['content'] }}\n\n"
    "{% else %}### Response:\n{{ message['content'] }}{{ eos_token }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:\n{% endif %}"
)
_LLAMA3: Final = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL: Final = (
    "{{ bos_token }}{% set ns = namespace(first='') %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{% if not loop.first %}{{ raise_exception('a system message that is not first') }}{% endif %}"
    "{% set ns.first = message['content'] + '\n\n' %}"
    "{% elif message['role'] == 'assistant' %} {{ message['content'] }}{{ eos_token }}"
    "{% else %} [INST] {{ ns.first }}{{ message['content'] }} [/INST]{% set ns.first = '' %}{% endif %}{% endfor %}"
)
_EXAONE: Final = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '[|system|][|endofturn|]\n' }}"
    "{% endif %}[|{{ message['role'] }}|]{{ message['content'] }}"
    "{{ '\n' if message['role'] == 'user' else '[|endofturn|]\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[|assistant|]{% endif %}"
)
TEMPLATES: Final[Mapping[str, str]] = {
    "alpaca": _ALPACA,
    "chatml": _CHATML,
    "exaone": _EXAONE,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
}


def chat_template(recipe: Recipe, materials: Mapping[ModelReference, Material]) -> str | None:
    """The template that the recipe asks for, or None where it says nothing.

    `auto` is the one that most models have, the first of equally frequent ones.

    Raises:
        ConfigError: a name that is not known.
    """
    asked = recipe.chat_template
    if asked is None:
        return None
    if asked == "auto":
        templates = [m.tokenizer.template for m in materials.values() if m.tokenizer and m.tokenizer.template]
        return Counter(templates).most_common(1)[0][0] if templates else None
    if asked in TEMPLATES:
        return TEMPLATES[asked]
    if "{" not in asked:
        known = (*TEMPLATES, "auto")
        expected = f"{', '.join(known)} or a Jinja text"
        raise ConfigError(Fault(recipe.where, f"chat_template '{asked}'", expected, did_you_mean(asked, known)))
    return asked


def merged_config(recipe: Recipe, donor: Material, result: Checkpoint, target: Tokenizer | None) -> dict[str, Any]:
    """The donor's config with the layers, vocabulary and dtype of the result; empty where the donor has none."""
    config: dict[str, Any] = copy.deepcopy(dict(donor.config))
    if not config:
        return config
    _set_layers(config, recipe, donor, result)
    if target is not None:
        _set_vocabulary(config, donor, result)
        _set_ids(config, donor.tokenizer, target)
    stored_heads = [name for name in result if name not in donor.checkpoint and "head" in name]
    if stored_heads and config.get("tie_word_embeddings", True):
        config["tie_word_embeddings"] = False
    dtype = _main_dtype(result)
    if dtype is not None:
        config["dtype" if "torch_dtype" not in config else "torch_dtype"] = str(dtype).removeprefix("torch.")
    return config


def merged_generation(donor: Material, target: Tokenizer | None) -> dict[str, Any] | None:
    """The donor's generation config with the ids of the result's tokenizer, or None where it has none."""
    if donor.generation is None:
        return None
    generation: dict[str, Any] = copy.deepcopy(dict(donor.generation))
    if target is not None:
        _set_ids(generation, donor.tokenizer, target)
    return generation


def _main_dtype(result: Checkpoint) -> torch.dtype | None:
    sizes: Counter[torch.dtype] = Counter()
    for name in result:
        spec = result.spec(name)
        if spec.dtype.is_floating_point:
            sizes[spec.dtype] += spec.numel
    return sizes.most_common(1)[0][0] if sizes else None


def _set_layers(config: dict[str, Any], recipe: Recipe, donor: Material, result: Checkpoint) -> None:
    """Numbers of layers that changed, and lists with an entry per layer."""
    before, after = layer_counts(donor.checkpoint), layer_counts(result)
    for stack, old in before.items():
        new = after.get(stack, old)
        source = _source_layers(recipe)
        if (new == old and source == list(range(old))) or (not source and new == old):
            continue
        for part in (config, *(config[key] for key in _INNER if isinstance(config.get(key), dict))):
            _set_layers_in(part, old, new, source)


def _set_layers_in(part: dict[str, Any], old: int, new: int, source: Sequence[int]) -> None:
    keys = [key for key in _LAYERS if part.get(key) == old]
    for key in keys:
        part[key] = new
    for key, value in part.items():
        if keys and isinstance(value, list) and len(value) == old and "layer" in key and len(source) == new:
            part[key] = [value[number] for number in source]


def _source_layers(recipe: Recipe) -> list[int]:
    """For each layer of the result, the one of the first source that it comes from; empty for whole models."""
    parts = [part for module in recipe.modules for part in module.slices]
    return [n for part in parts if part.inputs[0].layers is not None for n in range(*part.inputs[0].layers)]


def _set_vocabulary(config: dict[str, Any], donor: Material, result: Checkpoint) -> None:
    axes = vocabulary_axes(donor.checkpoint, donor.config)
    rows = next((result.spec(name).shape[axis] for name, axis in axes.items() if name in result), None)
    for part in (config, *(config[key] for key in _INNER if isinstance(config.get(key), dict))):
        if rows is not None and "vocab_size" in part:
            part["vocab_size"] = rows


def _set_ids(config: dict[str, Any], old: Tokenizer | None, target: Tokenizer) -> None:
    """Ids of special tokens, where the token has another id in the result's tokenizer."""
    tokens = {} if old is None else {number: token for token, number in old.ids.items()}
    for kind in _IDS:
        key = f"{kind}_token_id"
        value = config.get(key)
        if isinstance(value, list):
            config[key] = [target.ids[tokens[n]] for n in value if tokens.get(n) in target.ids] or value
        elif isinstance(value, int):
            token = tokens.get(value)
            token = token if token in target.ids else target.special(kind)
            config[key] = target.ids.get(token, value) if token is not None else value
