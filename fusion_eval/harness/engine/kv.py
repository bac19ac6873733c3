"""Keys and values kept between forward passes, over the names that versions of transformers give them."""

from __future__ import annotations

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
