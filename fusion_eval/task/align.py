"""Bringing predictions and targets into the shapes that a domain's metrics take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusion_eval.errors import DataError, EvaluationError, Fault

Aligned = tuple[Any, Any, Any]
"""(predictions, probabilities, target)."""


def numbers(preds: Any, probs: Any, target: Any) -> Aligned:
    """Regression: columns (N, 1) become (N,), and both sides have one shape.

    Raises:
        EvaluationError: they have not.
    """
    if not isinstance(preds, Tensor) or not isinstance(target, Tensor):
        return preds, probs, target
    mine, theirs = _without_column(preds), _without_column(target)
    if mine.shape != theirs.shape:
        found = f"predictions {tuple(preds.shape)} for targets {tuple(target.shape)}"
        raise EvaluationError(
            Fault("the model's output", found, "one shape", "Set predict_fn, or the model's outputs.")
        )
    return mine, probs, theirs.to(mine.dtype)


def class_indices(preds: Any, probs: Any, target: Any) -> Aligned:
    """Classification and segmentation: one class index per prediction.

    Raises:
        DataError: targets that are no whole numbers.
        EvaluationError: predictions of another shape than the targets.
    """
    target = _indices(target)
    if not isinstance(preds, Tensor) or not isinstance(target, Tensor):
        return preds, probs, target
    if preds.is_floating_point():
        preds = _whole(preds)
    if target.is_floating_point() or target.is_complex():
        found = f"targets of dtype {target.dtype}"
        raise DataError(Fault("the targets", found, "class indices", "For 0/1 per label see task 'multilabel'."))
    if preds.shape != target.shape and target.ndim == preds.ndim + 1 and 1 in target.shape[1:]:
        target = target.squeeze(1) if target.shape[1] == 1 else target.squeeze(-1)
    if preds.shape != target.shape:
        found = f"predictions {tuple(preds.shape)} for targets {tuple(target.shape)}"
        raise EvaluationError(Fault("the model's output", found, "one class index per target", "Set predict_fn."))
    return preds, probs, target.long()


def zeros_and_ones(preds: Any, probs: Any, target: Any) -> Aligned:
    """Binary and multilabel: targets as whole numbers in the predictions' shape.

    Raises:
        DataError: targets other than 0 and 1.
        EvaluationError: another number of predictions.
    """
    if not isinstance(preds, Tensor) or not isinstance(target, Tensor):
        return preds, probs, target
    if preds.numel() != target.numel():
        found = f"predictions {tuple(preds.shape)} for targets {tuple(target.shape)}"
        raise EvaluationError(Fault("the model's output", found, "one prediction per target", "Set predict_fn."))
    if target.is_floating_point() and bool((target != target.round()).any()):
        raise DataError(Fault("the targets", "numbers between 0 and 1", "0 or 1"))
    return preds, probs, target.reshape(preds.shape).long()


def _indices(target: Any) -> Any:
    """Numbers in a list as a tensor.

    Raises:
        DataError: targets that are texts.
    """
    if not isinstance(target, list) or not target or isinstance(target[0], Tensor):
        return target
    if not all(isinstance(entry, int | float) for entry in target):
        found = f"targets such as {target[0]!r}"
        raise DataError(Fault("the targets", found, "class indices", "Number the classes, in the order of the logits."))
    return torch.tensor(target)


def _whole(preds: Tensor) -> Tensor:
    """Class indices that are kept as floating point numbers.

    Raises:
        EvaluationError: they are no whole numbers.
    """
    if bool((preds != preds.round()).any()):
        found = f"predictions of dtype {preds.dtype} that are no whole numbers"
        raise EvaluationError(
            Fault("the predictions", found, "class indices", "predict_fn returns (predictions, probabilities).")
        )
    return preds.long()


def _without_column(values: Tensor) -> Tensor:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
