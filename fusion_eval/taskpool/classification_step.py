"""Classification batches as per-item rows: prediction, target, correctness, loss, and probabilities where wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import DataError, EvaluationError, Fault, listed
from fusion_eval.evaluation.rows import Column
from fusion_eval.task.inputs import call_model, split_batch
from fusion_eval.task.outputs import features_of, logits_of
from fusion_eval.task.task import BatchFields, PredictFn


@dataclass(frozen=True, slots=True)
class ClassificationStep:
    """Logits (N, C) against class indices (N,).

    Args:
        task: the task's name, for errors.
        head: maps the model's features to logits; None where the model gives logits.
        predict_fn: replaces the forward pass and argmax; returns (predictions, probabilities).
        keep_probs: keep the probabilities (N, C) as a column.
        keep_loss: keep the cross entropy as a column.
        fields: what the parts of a batch are, where that is no pair and no dictionary with a label.
    """

    task: str
    head: nn.Module | None = None
    predict_fn: PredictFn | None = None
    keep_probs: bool = False
    keep_loss: bool = True
    fields: BatchFields | None = None

    @property
    def where(self) -> str:
        """The task, for errors."""
        return f"task '{self.task}'"

    def forward(self, model: nn.Module, batch: Any, ids: range) -> tuple[Tensor, ...]:
        """(logits, labels), or (probabilities, predictions, labels) with a predict function."""
        parts = split_batch(batch, self.fields, self.where)
        labels = parts.target
        if not isinstance(labels, Tensor):
            labels = self._as_tensor(labels)
        if self.predict_fn is not None:
            preds, probs = self.predict_fn(model, parts.inputs)
            return probs if isinstance(probs, Tensor) else preds, preds, labels
        output = call_model(model, parts.inputs, self.where)
        logits = logits_of(output) if self.head is None else self.head(features_of(output))
        self._check_layout(logits, labels)
        return logits, labels

    def finish(self, outputs: list[Any], ids: Tensor) -> dict[str, Column]:
        """The rows of several batches."""
        scores = torch.cat([output[0] for output in outputs])
        labels = torch.cat([output[-1].reshape(-1) if output[-1].ndim == 1 else output[-1] for output in outputs])
        self._check_finite(scores, ids)
        if self.predict_fn is not None:
            preds = torch.cat([output[1] for output in outputs])
            return self._predicted(scores, preds, labels, ids)
        self._check_labels(scores, labels, ids)
        logits = scores.float()
        target = labels.long().to(logits.device)
        pred = logits.argmax(-1)
        columns: dict[str, Column] = {
            "pred": pred.cpu(),
            "target": target.cpu(),
            "correct": (pred == target).float().cpu(),
        }
        if not (self.keep_loss or self.keep_probs):
            return columns
        logits = logits - logits.amax(1, keepdim=True)  # the sum of logits and their logarithm keeps few digits
        total = logits.exp().sum(1).log()  # a quarter of the time of a softmax over few classes
        chosen = logits.gather(1, target[:, None])[:, 0]
        columns["loss"] = (total - chosen).clamp_min(0.0).cpu()
        if self.keep_probs:
            columns["probs"] = (logits - total[:, None]).exp().cpu()
        return columns

    def _predicted(self, probs: Tensor, preds: Tensor, labels: Tensor, ids: Tensor) -> dict[str, Column]:
        if preds.shape != labels.shape:
            raise EvaluationError(
                Fault(
                    self.where,
                    f"predict_fn gave predictions {tuple(preds.shape)} for labels {tuple(labels.shape)}",
                    "one class index per item",
                )
            )
        target = labels.long().to(preds.device)
        columns: dict[str, Column] = {
            "pred": preds.cpu(),
            "target": target.cpu(),
            "correct": (preds == target).float().cpu(),
        }
        if probs.ndim == 2:
            self._check_labels(probs, labels, ids)
            chosen = probs.float().gather(1, target[:, None])[:, 0]
            columns["loss"] = -chosen.clamp_min(torch.finfo(torch.float32).tiny).log().cpu()
            if self.keep_probs:
                columns["probs"] = probs.float().cpu()
        return columns

    def _as_tensor(self, labels: Any) -> Tensor:
        try:
            return torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError) as error:
            first = labels[0] if isinstance(labels, list | tuple) and labels else labels
            do = "Map them to numbers in the data set, or in a collate_fn."
            raise DataError(Fault(self.where, f"labels such as {first!r}", "class indices", do)) from error

    def _check_layout(self, logits: Tensor, labels: Tensor) -> None:
        """Shapes and dtypes only, which need no synchronisation with the device."""
        items = len(labels) if labels.ndim else None
        if logits.is_complex() or not logits.ndim or items not in (None, len(logits)):
            found = f"outputs of shape {tuple(logits.shape)} and dtype {logits.dtype} for {items} labels"
            raise EvaluationError(Fault(self.where, found, "real logits (items, classes), one row per label"))

    def _check_finite(self, scores: Tensor, ids: Tensor) -> None:
        if not scores.is_floating_point() or bool(torch.isfinite(scores).all()):
            return
        bad = ~torch.isfinite(scores.reshape(len(scores), -1)).all(1).cpu()
        raise EvaluationError(
            Fault(
                self.where,
                f"{int(bad.sum())} of {len(bad)} outputs are NaN or infinite "
                f"(items {listed(ids[: len(bad)][bad].tolist())})",
                "finite logits",
                "Check the merge (its scaling, its inputs) and the precision.",
            )
        )

    def _check_labels(self, scores: Tensor, labels: Tensor, ids: Tensor) -> None:
        if scores.ndim != 2:
            raise EvaluationError(
                Fault(
                    self.where,
                    f"outputs of shape {tuple(scores.shape)}",
                    "logits (items, classes)",
                    "Give the task pool heads, or a predict_fn that makes logits of the model's features.",
                )
            )
        if labels.ndim != 1 or labels.is_floating_point():
            raise DataError(
                Fault(
                    self.where,
                    f"labels of shape {tuple(labels.shape)} and dtype {labels.dtype}",
                    "class indices (items,)",
                )
            )
        classes = scores.shape[1]
        outside = ((labels < 0) | (labels >= classes)).cpu()
        if bool(outside.any()):
            worst = labels.cpu()[outside]
            raise DataError(
                Fault(
                    self.where,
                    f"{int(outside.sum())} labels outside the head's {classes} classes: "
                    f"{listed(sorted(set(worst.tolist())))} "
                    f"(items {listed(ids[: len(outside)][outside].tolist())})",
                    f"labels from 0 to {classes - 1}",
                    "Use the head and the label mapping of this task.",
                )
            )


def known_label_range(dataset: Any) -> tuple[int, int] | None:
    """(smallest, largest) label that a data set declares without being read, or None."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        for key in ("label", "labels", "fine_label"):
            classes = getattr(features.get(key), "num_classes", None)
            if classes:
                return 0, int(classes) - 1
    for name in ("targets", "labels"):
        labels = getattr(dataset, name, None)
        if isinstance(labels, list | tuple | Tensor) and len(labels):
            values = torch.as_tensor(labels)
            if values.ndim == 1 and not values.is_floating_point():
                return int(values.min()), int(values.max())
    return None
