"""Keys and values kept between forward passes, over the names that versions of transformers give them."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def new_cache() -> Any:
    """An empty cache that grows with every pass."""
    from transformers import DynamicCache

    return DynamicCache()


def cache_keyword(model: Any) -> str:
    """The keyword under which a model's `forward` takes a cache."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def crop(cache: Any, length: int) -> None:
    """Forget all but the first `length` tokens."""
    surplus = int(cache.get_seq_length()) - length
    if surplus > 0:
        cache.crop(-surplus)


def layers_of(cache: Any) -> list[tuple[Any, Any]]:
    """(keys, values) of every layer, each [batch, heads, tokens, size]."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache, strict=True))


def cache_of(layers: list[tuple[Any, Any]]) -> Any:
    """A cache that holds these keys and values."""
    cache = new_cache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys, values, number)
    return cache


def growing_cache(layers: list[tuple[Any, Any]], length: int) -> Any:
    """A cache of the first `length` tokens of these buffers, so that a new token copies nothing but itself.

    Where the installed transformers has no cache layers, an ordinary one.
    """
    try:
        layer_class = _growing_layer()
    except ImportError:
        return cache_of([(keys[:, :, :length], values[:, :, :length]) for keys, values in layers])
    cache = new_cache()
    cache.layers = [layer_class.holding(keys, values, length) for keys, values in layers]
    return cache


@functools.cache
def _growing_layer() -> Any:
    """The class of such a layer, made on first use since it derives from a class of transformers."""
    from transformers.cache_utils import DynamicLayer

    class GrowingLayer(DynamicLayer):  # type: ignore[misc, no-untyped-call]
        """Keys and values at the front of larger buffers."""

        length: int
        room: list[Any]

        @classmethod
        def holding(cls, keys: Any, values: Any, length: int) -> Any:
            layer = cls()
            layer.lazy_initialization(keys, values)
            layer.length = length
            layer.room = [keys, values]
            layer.keys, layer.values = (buffer[:, :, :length] for buffer in layer.room)
            return layer

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            end = self.length + key_states.shape[2]
            if end > self.room[0].shape[2]:
                self.room = [self._larger(buffer, end) for buffer in self.room]
            for buffer, new in zip(self.room, (key_states, value_states), strict=True):
                buffer[:, :, self.length : end] = new
            self.length = end
            self.keys, self.values = (buffer[:, :, :end] for buffer in self.room)
            return self.keys, self.values

        def _larger(self, buffer: Any, least: int) -> Any:
            batch, heads, _, size = buffer.shape
            whole = buffer.new_zeros((batch, heads, least + max(32, least // 4), size))
            whole[:, :, : self.length] = buffer[:, :, : self.length]
            return whole

        def batch_select_indices(self, indices: Any) -> None:
            self.room = [buffer[indices] for buffer in self.room]
            self.keys, self.values = (buffer[:, :, : self.length] for buffer in self.room)

    return GrowingLayer
