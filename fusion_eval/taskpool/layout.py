"""Which part of a batch is the input and which the label, and how a model is called with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from fusion_eval.errors import DataError, Fault, listed

LABEL_KEYS = ("labels", "label", "target", "targets", "fine_label", "y")
IMAGE_KEYS = ("pixel_values", "image", "img", "x")


def split_batch(batch: Any, where: str) -> tuple[Any, Any]:
    """(inputs, labels) of a pair, or of a dictionary with a label under one of the usual names.

    Raises:
        DataError: the batch has another layout.
    """
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        label = label_key(batch, where)
        return {key: batch[key] for key in batch if key != label}, batch[label]
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
    raise DataError(
        Fault(
            where,
            f"a batch that is a {type(batch).__name__}{size}",
            "a pair (inputs, labels) or a dictionary with labels",
            "Give dataloader_kwargs.collate_fn a function that returns one of them.",
        )
    )


def label_key(row: Any, where: str) -> str:
    """The name under which a row or batch holds its label."""
    for key in LABEL_KEYS:
        if key in row:
            return key
    raise DataError(
        Fault(
            where,
            f"no label among {listed(list(row))}",
            f"one of {', '.join(LABEL_KEYS)}",
            "Rename the data set's label column.",
        )
    )


def call(model: nn.Module, inputs: Any, where: str) -> Any:
    """The model's output for a tensor, or for a dictionary of keyword inputs.

    Of a dictionary, the keys that `forward` names are passed; a single other entry is passed by position.

    Raises:
        DataError: no entry fits the model.
    """
    if not isinstance(inputs, Mapping):
        return model(inputs)
    named = _forward_names(type(model).forward)
    chosen = {key: value for key, value in inputs.items() if key in named}
    if chosen:
        return model(**chosen)
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    if len(tensors) == 1:
        return model(tensors[0])
    raise DataError(
        Fault(
            where,
            f"a batch with the entries {listed(list(inputs))}",
            f"the arguments of {type(model).__name__}.forward: {listed(sorted(named))}",
        )
    )


@lru_cache(maxsize=64)
def _forward_names(forward: Callable[..., Any]) -> frozenset[str]:
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
