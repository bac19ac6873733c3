"""Heads: what turns the features of a shared model into the logits of one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, EvaluationError, Fault
from fusion_eval.task.outputs import features_of


class LinearHead(nn.Module):
    """Features (N, width) -> logits (N, classes) by a frozen linear map.

    Args:
        weight: (classes, width).
        bias: (classes,), or None.
        name: the task, for errors.

    Raises:
        ConfigError: weight is no matrix, or the bias does not fit it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, name: str = "head") -> None:
        super().__init__()
        _check_matrix(f"head '{name}'", weight)
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ConfigError(Fault(f"head '{name}', bias", f"shape {tuple(bias.shape)}", f"({len(weight)},)"))
        self.name = name
        self.weight: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", _computing(weight))
        self.register_buffer("bias", None if bias is None else _computing(bias))

    @property
    def num_classes(self) -> int:
        """How many logits the head gives."""
        return len(self.weight)

    def forward(self, output: Any) -> Tensor:
        """Logits (N, classes) from a model's output."""
        features = _matching(features_of(output), self.weight.shape[1], self.name)
        return F.linear(features.to(self.weight.dtype), self.weight, self.bias)


class ZeroShotHead(nn.Module):
    """Image features (N, width) -> logits (N, classes): scale x cosine with the class texts (CLIP, arXiv:2103.00020).

    Args:
        texts: (classes, dim), one embedding per class; normalised here.
        scale: the inverse temperature, exp(logit_scale) of the CLIP model.
        projection: (dim, width), from the vision tower's pooled output into the shared space; None where the features
            are in that space already.
        name: the task, for errors.

    Raises:
        ConfigError: texts or projection are no matrices, or do not fit each other.
    """

    def __init__(self, texts: Tensor, scale: float, projection: Tensor | None = None, name: str = "head") -> None:
        super().__init__()
        _check_matrix(f"head '{name}', texts", texts)
        if projection is not None:
            _check_matrix(f"head '{name}', projection", projection)
            if len(projection) != texts.shape[1]:
                raise ConfigError(
                    Fault(f"head '{name}', projection", f"{len(projection)} rows", f"{texts.shape[1]}, as the texts")
                )
        self.name, self.scale = name, float(scale)
        self.texts: Tensor
        self.projection: Tensor | None
        self.register_buffer("texts", F.normalize(_computing(texts), dim=-1))
        self.register_buffer("projection", None if projection is None else _computing(projection))

    @property
    def num_classes(self) -> int:
        """How many logits the head gives."""
        return len(self.texts)

    def forward(self, output: Any) -> Tensor:
        """Logits (N, classes) from a model's output."""
        width = self.texts.shape[1] if self.projection is None else self.projection.shape[1]
        features = _matching(features_of(output), width, self.name)
        if self.projection is not None:
            features = F.linear(features.to(self.projection.dtype), self.projection)
        return self.scale * F.linear(F.normalize(features.to(self.texts.dtype), dim=-1), self.texts)


def linear_heads(tensors: Mapping[str, Tensor]) -> dict[str, LinearHead]:
    """One head per task from named tensors: `task`, or `task.weight` with an optional `task.bias`."""
    heads: dict[str, LinearHead] = {}
    for name, tensor in tensors.items():
        if name.endswith(".bias") and name.removesuffix(".bias") + ".weight" in tensors:
            continue
        task = name.removesuffix(".weight")
        heads[task] = LinearHead(tensor, tensors.get(f"{task}.bias"), task)
    return heads


def _computing(tensor: Tensor) -> Tensor:
    """A copy in float32 (float64 stays), whatever precision it was stored in."""
    dtype = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    return tensor.detach().to(dtype, copy=True)


def _check_matrix(where: str, tensor: Tensor) -> None:
    if tensor.ndim != 2:
        raise ConfigError(Fault(where, f"shape {tuple(tensor.shape)}", "a matrix (rows, columns)"))


def _matching(features: Tensor, width: int, name: str) -> Tensor:
    if features.ndim != 2 or features.shape[1] != width:
        raise EvaluationError(
            Fault(f"head '{name}'", f"features of shape {tuple(features.shape)}", f"(items, {width})")
        )
    return features
