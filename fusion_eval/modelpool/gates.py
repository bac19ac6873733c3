"""Routers from prompts: the direction, at each layer's feed-forward input, of the texts that an expert is for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, Fault

MODES: Final = ("hidden", "hidden_avg", "hidden_last", "cheap_embed", "random", "uniform_random")

Prompts = Sequence[tuple[Sequence[str], Sequence[str]]]
"""For each expert its positive and its negative prompts."""


def gate_rows(model: nn.Module, tokenizer: Path, prompts: Prompts, mode: str, layers: int) -> list[Tensor]:
    """For each layer a router (experts, hidden).

    A row is the unit vector of the direction of the positive prompts' mean state less that of the negative ones'.
    States are what the layer's router will see: the input of its feed-forward layer, averaged over the tokens of a
    prompt, or of its last one (`hidden_last`); for `cheap_embed` the embeddings of all tokens of all prompts.

    Args:
        model: the dense base model.
        tokenizer: the folder of its tokenizer.
        prompts: positive and negative prompts by expert.
        mode: one of `MODES` that is not random.
        layers: how many layers the model has.
    """
    try:
        from transformers import AutoTokenizer

        encode: Any = AutoTokenizer.from_pretrained(tokenizer)
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(
            Fault(str(tokenizer), f"no tokenizer for the prompts ({error})", "tokenizer files")
        ) from error
    rows = []
    for positive, negative in prompts:
        state = _direction(model, encode, positive, mode, layers)
        if negative:
            state = state - _direction(model, encode, negative, mode, layers)
        rows.append(torch.nn.functional.normalize(state, dim=-1))
    return list(torch.stack(rows, 1))


def _direction(model: nn.Module, encode: Any, prompts: Sequence[str], mode: str, layers: int) -> Tensor:
    """(layers, hidden), averaged over prompts, of length one."""
    states = [_state(model, encode, prompt, mode, layers) for prompt in prompts]
    return torch.nn.functional.normalize(torch.stack(states).mean(0), dim=-1)


@torch.no_grad()
def _state(model: nn.Module, encode: Any, prompt: str, mode: str, layers: int) -> Tensor:
    tokens = encode(prompt, return_tensors="pt").input_ids
    if not tokens.numel():
        raise ConfigError(Fault("positive_prompts", f"prompt {prompt!r} is no token", "texts of at least one"))
    if mode == "cheap_embed":
        embed: Any = model.get_input_embeddings()  # type: ignore[operator]
        total: Tensor = embed(tokens)[0].float().sum(0)
        return total.expand(layers, -1)
    seen: list[Tensor] = []
    blocks = [module for name, module in model.named_modules() if name.endswith(".mlp")]
    hooks = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].float())) for block in blocks]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([each[-1] if mode == "hidden_last" else each.mean(0) for each in seen])
