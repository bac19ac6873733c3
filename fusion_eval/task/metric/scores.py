"""Proper scoring rules and exact matches as metrics: means over items, with the items' scores at hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fusion_eval.task.battery import MetricUnavailable

_TINY = torch.finfo(torch.float32).tiny


class ItemMean(Metric):
    """The mean over items of `item_scores`, which a subclass defines."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def item_scores(self, preds: Any, target: Any) -> Tensor:
        """One score per item, shape (N,)."""
        raise NotImplementedError

    def update(self, preds: Any, target: Any) -> None:
        """Add items."""
        scores = self.item_scores(preds, target).double()
        self.total = self.total + scores.sum()
        self.count = self.count + scores.numel()

    def compute(self) -> Tensor:
        """The mean."""
        return self.total / self.count


class NegativeLogLikelihood(ItemMean):
    """-log of the probability given to the true class; probabilities (N, C) or (N,) for the positive class."""

    higher_is_better = False

    def item_scores(self, preds: Tensor, target: Tensor) -> Tensor:
        """One value per item."""
        if preds.ndim == target.ndim:
            chosen = torch.where(target > 0, preds, 1 - preds).reshape(len(target), -1)
            return -chosen.clamp_min(_TINY).log().mean(1)
        return -preds.gather(1, target[:, None].long())[:, 0].clamp_min(_TINY).log()


class BrierScore(ItemMean):
    """Squared distance between the probabilities and the truth (Brier 1950), summed over classes."""

    higher_is_better = False

    def item_scores(self, preds: Tensor, target: Tensor) -> Tensor:
        """One value per item."""
        if preds.ndim == target.ndim:
            return (preds - target.to(preds.dtype)).square().reshape(len(target), -1).mean(1)
        truth = torch.nn.functional.one_hot(target.long(), preds.shape[1]).to(preds.dtype)
        return (preds - truth).square().sum(1)


class ExactTextMatch(ItemMean):
    """Whether a text equals its reference, or one of several; white space at the ends does not count."""

    higher_is_better = True

    def item_scores(self, preds: list[str], target: list[Any]) -> Tensor:
        """1 or 0 per item."""
        return torch.tensor(
            [float(text.strip() in {r.strip() for r in references(t)}) for text, t in zip(preds, target, strict=True)]
        )


def references(target: Any) -> list[str]:
    """The reference texts of one item."""
    return [target] if isinstance(target, str) else list(target)


def single_reference(target: list[Any], metric: str) -> list[str]:
    """One reference text per item.

    Raises:
        MetricUnavailable: an item has several.
    """
    several = sum(len(references(entry)) != 1 for entry in target)
    if several:
        raise MetricUnavailable(f"{several} items have several references, and {metric} takes one")
    return [references(entry)[0] for entry in target]


class TokenAccuracy(Metric):
    """The share of tokens whose most likely value is the right one; logits (N, T, V)."""

    higher_is_better = True
    full_state_update = False
    right: Tensor
    count: Tensor

    def __init__(self, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self.add_state("right", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add texts."""
        counted = target != self.ignore_index
        self.right = self.right + ((preds.argmax(-1) == target) & counted).sum()
        self.count = self.count + counted.sum()

    def compute(self) -> Tensor:
        """The share."""
        if not self.count:
            raise MetricUnavailable("no token counts: all are ignored")
        return self.right.double() / self.count
