"""Finding the logits or the features in what a model returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fusion_eval.errors import EvaluationError, Fault

_LOGITS = ("logits", "out", "logits_per_image")
_FEATURES = ("image_embeds", "text_embeds", "pooler_output", "features")


def logits_of(output: Any) -> Tensor:
    """The logits: the output itself, its `.logits`, its "logits" or "out", or the first of a tuple.

    Raises:
        EvaluationError: there is none of them, or it holds no data.
    """
    return _numbers(_find(output, _LOGITS, "logits"))


def features_of(output: Any) -> Tensor:
    """The features for a head: the output itself, its image embedding, pooled output or logits.

    Raises:
        EvaluationError: there is none of them.
    """
    return _find(output, (*_FEATURES, *_LOGITS), "features")


def _find(output: Any, names: tuple[str, ...], what: str) -> Tensor:
    if isinstance(output, Tensor):
        return output
    for name in names:
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    keys = list(output) if isinstance(output, Mapping) else type(output).__name__
    raise EvaluationError(
        Fault(
            "the model's output",
            f"{keys}",
            f"a tensor, or one of {', '.join(names)} to take {what} from",
            "Give the task a predict_fn that returns (predictions, probabilities).",
        )
    )


def _numbers(output: Tensor) -> Tensor:
    """The output as a dense tensor of a type that arithmetic knows.

    Raises:
        EvaluationError: a tensor without data.
    """
    if output.is_meta:
        do = "Load the weights first: model.to_empty(device=...), then load_state_dict."
        raise EvaluationError(Fault("the model's output", "a tensor without data (device 'meta')", "numbers", do))
    if output.layout != torch.strided:
        output = output.to_dense()
    return output.float() if output.is_floating_point() and output.element_size() == 1 else output
