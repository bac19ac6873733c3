"""What of a language model's architecture limits how its forward passes may be arranged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from fusion_eval.errors import ConfigError, Fault

_WINDOWS: Final = ("sliding_window", "attention_window_size", "sliding_window_size", "attention_chunk_size")
_ROUNDINGS: Final = 16  # of the largest logit, by which rows of one batch may differ


def attention_reach(config: Any) -> int | None:
    """The longest sequence in which every token sees all before it, where that is limited.

    Trees of longer ones would not: their mask holds for all layers.
    """
    if "local" in (getattr(config, "attention_layers", None) or ()):
        return 1  # GPT-Neo masks by column rather than by position, beneath any mask that it is given
    found = [] if getattr(config, "use_sliding_window", True) is False else [getattr(config, n, None) for n in _WINDOWS]
    return min((width for width in found if isinstance(width, int) and width > 0), default=None)


def rotary_reach(config: Any) -> int | None:
    """The longest sequence whose rotary angles are those of every shorter one, where longer ones change them all.

    So do "dynamic" (scaled by the length at hand) and "longrope" (other factors beyond the original length).
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    limits = [_limit(config, part) for part in parts if _depends_on_length(part)]
    return min(limits, default=None)


def _depends_on_length(rope: Mapping[str, Any]) -> bool:
    kind = str(rope.get("rope_type") or rope.get("type") or "")
    return "dynamic" in kind or kind in ("longrope", "su")


def _limit(config: Any, rope: Mapping[str, Any]) -> int:
    original = rope.get("original_max_position_embeddings")
    return int(original or getattr(config, "original_max_position_embeddings", 0) or config.max_position_embeddings)


def is_recurrent(model: Any) -> bool:
    """Whether the model keeps a state that is not one of keys and values per token."""
    return bool(getattr(model, "_is_stateful", False))


def length_bound(model: Any) -> list[Any]:
    """Modules whose rotary angles grow with the longest sequence seen, and stay so."""
    return [part for part in model.modules() if hasattr(part, "max_seq_len_cached") and "dynamic" in _kinds(part)]


def _kinds(part: Any) -> str:
    kind = getattr(part, "rope_type", "")
    return " ".join(map(str, kind.values())) if isinstance(kind, Mapping) else str(kind)


def forget_length(parts: list[Any]) -> None:
    """Take modules of `length_bound` back to where they began, so that no sequence changes the next one's scores."""
    for part in parts:
        for name in [n for n in vars(part) if n.endswith("max_seq_len_cached")]:
            setattr(part, name, part.original_max_seq_len)
        for name, tensor in list(part.named_buffers(recurse=False)):
            if name.endswith("original_inv_freq"):
                setattr(part, name.replace("original_", ""), tensor.clone())


def require_causal(model: Any, name: str) -> None:
    """Refuse a model that does not score texts from left to right; one small forward pass, in eval mode.

    Raises:
        ConfigError: it wants more than token ids, or its logits depend on tokens further on (as those of encoders, and
            of decoders that see their whole prompt at once): log-likelihoods would be wrong without a word.
    """
    ids = torch.tensor([[3, 5, 7, 9], [3, 5, 7, 11]], device=next(model.parameters()).device)
    expected, do = "a causal language model", "Choose one; vision-language models of other kinds take multimodal tasks."
    where = f"model '{name}', a {type(model).__name__}"
    try:
        with torch.inference_mode():
            logits = model(input_ids=ids % _words(model.config), use_cache=False).logits[:, :3]
    except (TypeError, ValueError) as error:
        raise ConfigError(Fault(where, f"takes no text alone: {error}", expected, do)) from error
    same = _ROUNDINGS * torch.finfo(logits.dtype).eps * logits.abs().max()
    if (logits[0] - logits[1]).abs().max() > same:
        raise ConfigError(Fault(where, "logits that change with the tokens behind them", expected, do))


def _words(config: Any) -> int:
    return int((getattr(config, "text_config", None) or config).vocab_size)
