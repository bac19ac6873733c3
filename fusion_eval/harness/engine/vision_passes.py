"""Forward passes of a model that sees: prefixes with pictures, trees of text after them, batches for writing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusion_eval.harness.engine.kv import cache_keyword, cache_of, layers_of, new_cache
from fusion_eval.harness.engine.trie import Pack
from fusion_eval.harness.engine.vision_inputs import Shown

_LEAST_ROWS, _MOST_ROWS = 8, 96
_ROW_BYTES = {"cpu": 2 << 30, "cuda": 8 << 30}
Layers = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is kept of a prompt up to its last picture.

    Args:
        layers: keys and values [1, heads, length, size].
        length: tokens.
        shift: what is added to the number of a later token to get its position.
    """

    layers: Layers
    length: int
    shift: int

    @property
    def bytes(self) -> int:
        """Memory that it holds."""
        return sum(part.numel() * part.element_size() for layer in self.layers for part in layer)


NOTHING = Prefix([], 0, 0)


class Passes:
    """Runs a vision-language model of transformers.

    Args:
        model: with a head for text, in eval mode.
        work: counters to add to.
    """

    def __init__(self, model: Any, work: dict[str, float]) -> None:
        self.model = model
        self.base = getattr(model, "model", model)
        self.work = work
        self.device = next(model.parameters()).device
        self.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        parameters = inspect.signature(model.forward).parameters
        self.takes = frozenset(parameters)
        self.takes_features = "mm_encoder_outputs" in parameters and callable(
            getattr(self.base, "get_image_features", None)
        )
        self._cache = cache_keyword(model)
        self._keeps_logits = "logits_to_keep" in parameters
        config = getattr(model.config, "text_config", None) or model.config
        self._kinds = frozenset(getattr(config, "layer_types", None) or ())
        self.window = window_of(config)

    def rows_that_fit(self, tokens: int = 1024) -> int:
        """Prompts of so many tokens whose keys and values take a sensible amount of memory."""
        config = getattr(self.model.config, "text_config", None) or self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        row: int = 2 * config.num_hidden_layers * heads * size * self.dtype.itemsize * tokens
        room = _ROW_BYTES["cpu" if self.device.type == "cpu" else "cuda"] // row
        return max(_LEAST_ROWS, min(_MOST_ROWS, room))

    @property
    def takes_trees(self) -> bool:
        """Whether its attention is of kinds whose masks are known here."""
        return self._kinds <= {"full_attention", "sliding_attention"}

    def keeps(self, shown: Shown) -> bool:
        """Whether what is kept of a prompt is keys and values of every token in every layer, and nothing else."""
        length, cache = len(shown.tokens), new_cache()
        self._whole([shown], [length], cache, padded=False)
        parts = [part for layer in layers_of(cache) for part in layer]
        return bool(parts) and all(part is not None and part.shape[2] == length for part in parts)

    def features(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Features of pictures, as the model itself computes them."""
        takes = inspect.signature(self.base.get_image_features).parameters
        given = {key: value for key, value in tensors.items() if key in takes}
        with torch.inference_mode():
            output = self.base.get_image_features(**given, return_dict=True)
        self.work["images_encoded"] = self.work.get("images_encoded", 0) + len(output.pooler_output)
        kept = {"pooler_output": output.pooler_output}
        if getattr(output, "deepstack_features", None) is not None:
            kept["deepstack_features"] = output.deepstack_features
        return type(output)(**kept)

    def alone(self, shown: Shown, length: int | None = None) -> Prefix:
        """Keys and values of a prompt's prefix, computed by itself; always the same operands, so the same bits."""
        length = shown.prefix if length is None else length
        if not length:
            return NOTHING
        cache = new_cache()
        self._whole([shown], [length], cache, padded=False)
        return Prefix(layers_of(cache), length, self._shifts([shown])[0])

    def logits(self, shown: Shown, last: int) -> torch.Tensor:
        """Logits [last, vocabulary] at the end of a prompt, by the model's own `forward` over all of it."""
        found: torch.Tensor = self._whole([shown], [len(shown.tokens)], None, padded=False, keep=last)[0]
        return found

    def tree(self, prefix: Prefix, pack: Pack, rows: np.ndarray[Any, Any]) -> torch.Tensor:
        """Logits [rows, vocabulary] of a tree of tokens after a prefix."""
        wanted = torch.from_numpy(rows).to(self.device)
        options: dict[str, Any] = {"logits_to_keep": wanted} if self._keeps_logits else {}
        if prefix.length:
            options[self._cache] = cache_of(prefix.layers)
        output = self.model(
            input_ids=torch.from_numpy(pack.tokens)[None].to(self.device),
            position_ids=torch.from_numpy(pack.positions + prefix.shift)[None].to(self.device),
            attention_mask=self._masks(prefix.length, pack), use_cache=bool(prefix.length), **options,
        )  # fmt: skip
        self._count(len(pack.tokens))
        logits: torch.Tensor = output.logits[0] if self._keeps_logits else output.logits[0, wanted]
        return logits

    def _masks(self, before: int, pack: Pack) -> Any:
        """What is added to attention [1, 1, tokens, prefix and tokens]; by kind of layer where there are two."""
        seen = np.concatenate([np.ones((len(pack.tokens), before), dtype=bool), pack.sees], axis=1)
        if self.window is None:
            return self._added(seen)
        places = np.concatenate([np.arange(before), pack.positions])
        near = self._added(seen & (pack.positions[:, None] - places[None] < self.window))
        if "full_attention" not in self._kinds:
            return near
        return {"full_attention": self._added(seen), "sliding_attention": near}

    def _added(self, seen: np.ndarray[Any, Any]) -> torch.Tensor:
        mask = torch.zeros((1, 1, *seen.shape), dtype=self.dtype, device=self.device)
        return mask.masked_fill_(torch.from_numpy(~seen).to(self.device), torch.finfo(self.dtype).min)

    def batch(self, prompts: Sequence[Shown], lengths: Sequence[int]) -> tuple[list[Prefix], torch.Tensor]:
        """The first `lengths` tokens of prompts in one pass: what is kept of each, and the logits after each."""
        cache = new_cache()
        logits = self._whole(prompts, lengths, cache, padded=True)[:, -1]
        layers, width = layers_of(cache), max(lengths)
        kept = [
            Prefix([(k[i : i + 1, :, width - n :], v[i : i + 1, :, width - n :]) for k, v in layers], n, shift)
            for i, (n, shift) in enumerate(zip(lengths, self._shifts(prompts), strict=True))
        ]
        return kept, logits

    def tails(self, prefixes: Sequence[Prefix], tails: Sequence[Sequence[int]]) -> tuple[list[Prefix], torch.Tensor]:
        """Text after prefixes, one of each per row: what is kept of the whole prompts, and the logits after each."""
        before, after = max(p.length for p in prefixes), max(map(len, tails))
        tokens = torch.zeros((len(tails), after), dtype=torch.long)
        mask = torch.zeros((len(tails), before + after), dtype=torch.long)
        for row, (prefix, tail) in enumerate(zip(prefixes, tails, strict=True)):
            tokens[row, after - len(tail) :] = torch.tensor(tail)
            mask[row, before - prefix.length : before] = 1
            mask[row, before + after - len(tail) :] = 1
        shifts = torch.tensor([[prefix.shift] for prefix in prefixes])
        positions = (mask.cumsum(1) - 1 + shifts)[:, before:].clamp(min=0)
        cache = cache_of(side_by_side(prefixes, before))
        output = self.model(
            input_ids=tokens.to(self.device), attention_mask=mask.to(self.device),
            position_ids=positions.to(self.device), use_cache=True, **{self._cache: cache}, **self._last(1),
        )  # fmt: skip
        self._count(tokens.numel())
        kept = []
        for row, (prefix, tail) in enumerate(zip(prefixes, tails, strict=True)):
            index = torch.from_numpy(np.flatnonzero(mask[row].numpy())).to(self.device)
            parts = [(k[row : row + 1, :, index], v[row : row + 1, :, index]) for k, v in layers_of(cache)]
            kept.append(Prefix(parts, prefix.length + len(tail), prefix.shift))
        return kept, output.logits[:, -1]

    def _whole(
        self, prompts: Sequence[Shown], lengths: Sequence[int], cache: Any, padded: bool, keep: int = 1
    ) -> torch.Tensor:
        """Logits [rows, keep, vocabulary] of left-padded prompts, pictures included."""
        width = max(lengths)
        rows = [shown.tokens[:n] for shown, n in zip(prompts, lengths, strict=True)]
        mask = _left(width, [(1,) * n for n in lengths])
        options = self.media(prompts)
        for key in dict.fromkeys(key for shown in prompts for key in shown.types):
            kinds = [tuple(shown.types.get(key, ()))[:n] or (0,) * n for shown, n in zip(prompts, lengths, strict=True)]
            options[key] = _left(width, kinds).to(self.device)
        if padded and not (self._counts_otherwise and options):
            options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0).to(self.device)
        if cache is not None:
            options[self._cache] = cache
        output = self.model(
            input_ids=_left(width, rows).to(self.device), attention_mask=mask.to(self.device),
            use_cache=cache is not None, **options, **self._last(keep),
        )  # fmt: skip
        self._count(width * len(rows))
        logits: torch.Tensor = output.logits[:, -keep:]
        return logits

    def media(self, prompts: Sequence[Shown]) -> dict[str, Any]:
        """Keywords for the pictures of all prompts, in order."""
        seen = [shown for shown in prompts if shown.media]
        if not seen:
            return {}
        names = dict.fromkeys(key for shown in seen for key in shown.tensors)
        found: dict[str, Any] = {key: torch.cat([shown.tensors[key] for shown in seen]) for key in names}
        features = [feature for shown in seen for feature in shown.features or ()]
        if features:
            found["mm_encoder_outputs"] = {"image": _joined(features)}
        return found

    @property
    def _counts_otherwise(self) -> bool:
        """Whether pictures take other positions than one for each token."""
        return hasattr(self.base, "rope_deltas")

    def _shifts(self, prompts: Sequence[Shown]) -> list[int]:
        """Of each prompt of the pass that has just run."""
        if not self._counts_otherwise or not any(shown.media for shown in prompts):
            return [0] * len(prompts)
        found: list[int] = self.base.rope_deltas.reshape(-1).tolist()
        return found

    def _last(self, keep: int) -> dict[str, Any]:
        return {"logits_to_keep": keep} if self._keeps_logits else {}

    def _count(self, tokens: int) -> None:
        self.work["tokens_forwarded"] = self.work.get("tokens_forwarded", 0) + tokens
        self.work["forward_passes"] = self.work.get("forward_passes", 0) + 1


def window_of(config: Any) -> int | None:
    """How far back layers with a sliding window look; None where no layer has one."""
    kinds = getattr(config, "layer_types", None)
    if getattr(config, "use_sliding_window", True) is False or (kinds and "sliding_attention" not in kinds):
        return None
    window = getattr(config, "sliding_window", None)
    return int(window) if isinstance(window, int) and window > 0 else None


def _left(width: int, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Rows that end together [rows, width], zeros before them."""
    found = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        found[i, width - len(row) :] = torch.tensor(row)
    return found


def side_by_side(prefixes: Sequence[Prefix], width: int) -> Layers:
    """Keys and values [rows, heads, width, size], zeros on the left."""
    layers = []
    for number in range(max(len(prefix.layers) for prefix in prefixes)):
        pair = []
        for side in (0, 1):
            like = next(prefix.layers[number][side] for prefix in prefixes if prefix.layers)
            whole = like.new_zeros((len(prefixes), like.shape[1], width, like.shape[3]))
            for row, prefix in enumerate(prefixes):
                if prefix.layers:
                    whole[row, :, width - prefix.length :] = prefix.layers[number][side][0]
            pair.append(whole)
        layers.append((pair[0], pair[1]))
    return layers


def split(features: Any) -> list[Any]:
    """Features of several pictures as those of each."""
    deep = getattr(features, "deepstack_features", None)
    found = []
    for i in range(len(features.pooler_output)):
        kept: dict[str, Any] = {"pooler_output": features.pooler_output[i : i + 1]}
        if deep is not None:
            kept["deepstack_features"] = [layer[i : i + 1] for layer in deep]
        found.append(type(features)(**kept))
    return found


def _joined(features: Sequence[Any]) -> Any:
    """Features of several pictures as of one call."""
    if len(features) == 1:
        return features[0]
    first = features[0]
    pooled = [feature.pooler_output for feature in features]
    kept: dict[str, Any] = {
        "pooler_output": torch.cat(pooled) if isinstance(pooled[0], torch.Tensor) else _flat(pooled)
    }
    if getattr(first, "deepstack_features", None) is not None:
        layers = zip(*(feature.deepstack_features for feature in features), strict=True)
        kept["deepstack_features"] = [_flat(layer) for layer in layers]
    return type(first)(**kept)


def _flat(parts: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for part in parts for tensor in part)
