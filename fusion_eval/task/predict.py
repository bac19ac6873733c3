"""Predict functions: from a model and an input to (predictions, probabilities).

The ones here come in two halves: `forward` runs once per batch, `decode` once on the outputs of many batches, which
saves most of the small tensor operations of an evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.task.inputs import call_model
from fusion_eval.task.outputs import logits_of


@runtime_checkable
class TwoStepPredict(Protocol):
    """A predict function whose decoding can wait until many batches are there."""

    def forward(self, model: nn.Module, x: Any) -> Any:
        """Raw outputs, one per item in the first dimension."""

    def decode(self, raw: Any, probs: bool = True) -> tuple[Any, Any]:
        """(predictions, probabilities) of raw outputs; probabilities may be None where they are not wanted."""


@dataclass(frozen=True, slots=True)
class ArgmaxPredict:
    """Class indices and softmax probabilities from logits with the classes in dimension `dim`."""

    dim: int = -1

    def __call__(self, model: nn.Module, x: Any) -> tuple[Tensor, Tensor | None]:
        """(class indices, probabilities)."""
        return self.decode(self.forward(model, x))

    def forward(self, model: nn.Module, x: Any) -> Tensor:
        """The logits."""
        return logits_of(call_model(model, x))

    def decode(self, raw: Tensor, probs: bool = True) -> tuple[Tensor, Tensor | None]:
        """(class indices, probabilities in float32)."""
        if not probs:
            return raw.argmax(self.dim), None
        logits = raw.float()  # a fifth of the time of torch.softmax over few classes
        return raw.argmax(self.dim), (logits - logits.logsumexp(self.dim, keepdim=True)).exp()


@dataclass(frozen=True, slots=True)
class SigmoidPredict:
    """0/1 labels and probabilities from one logit per item (N,), or per item and label (N, L).

    Two logits per item, (N, 2), are read as a softmax over absent and present when `binary` is set.
    """

    threshold: float = 0.5
    binary: bool = True

    def __call__(self, model: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
        """(0/1 labels, probabilities)."""
        return self.decode(self.forward(model, x))

    def forward(self, model: nn.Module, x: Any) -> Tensor:
        """The logits."""
        return logits_of(call_model(model, x))

    def decode(self, raw: Tensor, probs: bool = True) -> tuple[Tensor, Tensor]:
        """(0/1 labels, probabilities in float32)."""
        logits = raw.float()
        if self.binary and logits.ndim == 2:
            if logits.shape[1] > 2:
                found = f"{logits.shape[1]} logits per item"
                raise EvaluationError(Fault("the model's output", found, "one or two", "Use task 'classification'."))
            logits = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
        chances = torch.sigmoid(logits)
        return (chances >= self.threshold).long(), chances


@dataclass(frozen=True, slots=True)
class Passthrough:
    """The model's output as the prediction, without probabilities: tensors, texts, boxes."""

    def __call__(self, model: nn.Module, x: Any) -> tuple[Any, None]:
        """(output, None)."""
        return call_model(model, x), None


@dataclass(frozen=True, slots=True)
class TensorPredict:
    """The tensor in the model's output as the prediction, without probabilities."""

    def __call__(self, model: nn.Module, x: Any) -> tuple[Tensor, None]:
        """(output, None)."""
        return self.forward(model, x), None

    def forward(self, model: nn.Module, x: Any) -> Tensor:
        """The output."""
        return logits_of(call_model(model, x))

    def decode(self, raw: Tensor, probs: bool = True) -> tuple[Tensor, None]:
        """(output, None)."""
        return raw, None


@dataclass(frozen=True, slots=True)
class LabelPredict:
    """Group labels: whole numbers as they are, scores (N, K) by their largest entry."""

    def __call__(self, model: nn.Module, x: Any) -> tuple[Tensor, None]:
        """(labels, None)."""
        output = logits_of(call_model(model, x))
        return (output.argmax(-1) if output.is_floating_point() and output.ndim > 1 else output.long()), None
