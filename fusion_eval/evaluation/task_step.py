"""The batches of any task as per-item rows: outputs and targets, or sufficient statistics where outputs are large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import EvaluationError, Fault, FusionEvalError, listed
from fusion_eval.evaluation.columns import columns_of, joined_batches, length_of, on_cpu, rebuilt, tensors_in
from fusion_eval.evaluation.features import FEATURES, compares_sets, features_of_pairs
from fusion_eval.evaluation.feeding import fed, feed_of, wants_probabilities
from fusion_eval.evaluation.rows import Column
from fusion_eval.evaluation.statistics import (
    COUNTS,
    REASONS,
    STATES,
    check_labels,
    class_counts,
    is_additive,
    item_states,
    shared_classes,
)
from fusion_eval.task.inputs import BatchParts, split_batch
from fusion_eval.task.outputs import features_of
from fusion_eval.task.predict import ArgmaxPredict, TwoStepPredict
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

_EXTRAS = ("weight", "cluster")


@dataclass(frozen=True, slots=True)
class TaskStep:
    """Predictions, probabilities where a metric wants them, and targets of a task.

    Args:
        name: the task's name, for errors.
        task: what is measured.
        battery: the metrics that will be computed from the rows.
        head: maps the model's features to logits, which predict_fn then sees; None where the model gives them.
    """

    name: str
    task: Task
    battery: Mapping[str, Metric]
    head: nn.Module | None = None

    @property
    def where(self) -> str:
        """The task, for errors."""
        return f"task '{self.name}'"

    @property
    def keeps_statistics(self) -> bool:
        """Whether rows hold statistics instead of outputs."""
        kept = (is_additive(metric) or compares_sets(metric) for metric in self.battery.values())
        return self.task.dense and self.task.update_fn is None and all(kept)

    @property
    def keeps_probabilities(self) -> bool:
        """Whether a metric is fed probabilities."""
        return self.task.update_fn is not None or any(wants_probabilities(self.task, m) for m in self.battery)

    def forward(self, model: nn.Module, batch: Any, ids: range) -> dict[str, Any]:
        """Raw outputs of a batch, its target and what else it says about its items."""
        parts = split_batch(batch, self.task.fields, self.where)
        extras = {**parts.extras, "items": _items(parts, len(ids)), "target": parts.target}
        predict = self.task.predict_fn
        network = model if self.head is None else _WithHead(model, self.head)
        if isinstance(predict, TwoStepPredict):
            return {"raw": predict.forward(network, parts.inputs), **extras}
        result = predict(network, parts.inputs)
        if not isinstance(result, tuple | list) or len(result) != 2:
            found = f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, tuple) else "")
            do = "Where there are no probabilities, return the predictions twice, or None."
            raise EvaluationError(
                Fault(f"{self.where}, predict_fn", f"it returned {found}", "(predictions, probabilities)", do)
            )
        return {"pred": result[0], "probs": result[1] if self.keeps_probabilities else None, **extras}

    def finish(self, outputs: list[Any], ids: Tensor) -> dict[str, Column]:
        """The rows of several batches."""
        columns = joined_batches([self._columns(output) for output in outputs])
        preds, probs = self._predictions(columns, ids)
        target = rebuilt(columns, "target")
        if self.task.align is not None:
            preds, probs, target = self._aligned(preds, probs, target)
        for name, value in (("pred", preds), ("probs", probs)):
            self._check_finite(name, value, ids)
        self._check_classes(preds, probs, target, ids)
        items = sum(output["items"] for output in outputs)
        kept: dict[str, Column] = {name: on_cpu(columns[name]) for name in _EXTRAS if name in columns}
        mask = columns.get("mask")
        if isinstance(mask, Tensor) and mask.ndim == 1:
            kept["mask"] = mask.bool().cpu()
        elif isinstance(mask, Tensor):
            preds, probs, target = self._selected(mask.bool(), preds, probs, target)
        if self.keeps_statistics:
            return {**kept, **self._statistics(preds, target, items)}
        for name, value in (("pred", preds), ("probs", probs), ("target", target)):
            kept.update(columns_of(name, on_cpu(value), items, self.where))
        return kept

    def _columns(self, output: Mapping[str, Any]) -> dict[str, Column]:
        found: dict[str, Column] = {}
        for name, value in output.items():
            if name != "items":
                found.update(columns_of(name, value, output["items"], self.where))
        return found

    def _predictions(self, columns: Mapping[str, Column], ids: Tensor) -> tuple[Any, Any]:
        predict = self.task.predict_fn
        if not isinstance(predict, TwoStepPredict):
            return rebuilt(columns, "pred"), rebuilt(columns, "probs")
        raw, wanted = rebuilt(columns, "raw"), self.keeps_probabilities
        if isinstance(raw, Tensor) and (raw.is_complex() or raw.dtype == torch.bool):
            do = "Give the task a predict_fn that returns (predictions, probabilities)."
            raise EvaluationError(Fault(f"{self.where}, the model's output", f"dtype {raw.dtype}", "real numbers", do))
        self._check_finite("output", raw, ids)
        if isinstance(raw, list):
            decoded = [predict.decode(entry[None], wanted) for entry in raw]
            probs = [p[0] for _, p in decoded] if wanted and decoded[0][1] is not None else None
            return [pred[0] for pred, _ in decoded], probs
        preds, probs = predict.decode(raw, wanted)
        return preds, probs if wanted else None

    def _aligned(self, preds: Any, probs: Any, target: Any) -> tuple[Any, Any, Any]:
        assert self.task.align is not None
        try:
            return self.task.align(preds, probs, target)
        except FusionEvalError as error:
            raise type(error)(*(replace(f, where=f"{self.where}, {f.where}") for f in error.faults)) from error

    def _check_finite(self, name: str, value: Any, ids: Tensor) -> None:
        bad = not_finite(value)
        if bad is None or not bool(bad.any()):
            return
        items = listed(ids[: len(bad)][bad].tolist())
        raise EvaluationError(
            Fault(
                self.where,
                f"{int(bad.sum())} of {len(bad)} outputs are NaN or infinite (items {items})",
                "finite numbers",
                "Check the merge (its scaling, its inputs) and the precision.",
            )
        )

    def _check_classes(self, preds: Any, probs: Any, target: Any, ids: Tensor) -> None:
        counts = {getattr(metric, "num_classes", None) for metric in self.battery.values()} - {None}
        if len(counts) != 1 or not isinstance(self.task.predict_fn, ArgmaxPredict):
            return
        classes = int(counts.pop() or 0)
        ignored = {getattr(m, "ignore_index", None) for m in self.battery.values()}
        ignore_index = ignored.pop() if len(ignored) == 1 else None
        dim = self.task.predict_fn.dim
        if isinstance(probs, Tensor) and probs.ndim > 1 and probs.shape[dim] != classes:
            found = f"{probs.shape[dim]} logits per item for {classes} classes"
            do = "Set num_classes to the number of the model's outputs."
            raise EvaluationError(Fault(f"{self.where}, the model's output", found, f"{classes} logits", do))
        for name, value in (("target", target), ("prediction", preds)):
            if isinstance(value, Tensor):
                check_labels(self.where, name, value, ids, classes, ignore_index)

    def _selected(self, mask: Tensor, preds: Any, probs: Any, target: Any) -> tuple[Any, Any, Any]:
        """Only the elements that the mask counts, one flat tensor per item."""
        shapes = [tuple(value.shape) for value in (preds, target) if isinstance(value, Tensor)]
        if [shape[: mask.ndim] for shape in shapes] != [tuple(mask.shape)] * 2:
            found = f"a mask {tuple(mask.shape)} for predictions and targets {shapes}"
            raise EvaluationError(Fault(f"{self.where}, mask", found, "one truth value per item or per element"))
        if isinstance(probs, Tensor) and probs.ndim == mask.ndim + 1:
            last = probs.movedim(1, -1)
            probs = [last[i][mask[i]] for i in range(len(mask))]
        picked = [[value[i][mask[i]] for i in range(len(mask))] for value in (preds, target)]
        return picked[0], probs, picked[1]

    def _statistics(self, preds: Any, target: Any, items: int) -> dict[str, Column]:
        shared = shared_classes(self.battery)
        if shared is not None and isinstance(preds, Tensor) and isinstance(target, Tensor):
            return {COUNTS: class_counts(preds, target, *shared)}
        found: dict[str, Column] = {}
        for name, metric in self.battery.items():
            device = preds.device if isinstance(preds, Tensor) else torch.device("cpu")
            with fed(self.task, name, self.where):
                if compares_sets(metric):
                    found[FEATURES + name] = features_of_pairs(metric.to(device), preds, target)
                    continue
                states, reasons = item_states(metric.to(device), feed_of(self.task), preds, target, items)
            found.update({STATES + name: states, REASONS + name: reasons})
        return found


class _WithHead(nn.Module):
    """A feature model followed by a head; other attributes are the model's."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, head

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Logits."""
        return self.head(features_of(self.model(*args, **kwargs)))


def not_finite(value: Any) -> Tensor | None:
    """Which items (N,) of a column hold NaN or infinity; None where none can."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or bool(torch.isfinite(value).all()):
            return None
        return ~torch.isfinite(value.reshape(len(value), -1)).all(1).cpu()
    if not isinstance(value, list):
        return None
    flags = [any(t.is_floating_point() and not bool(torch.isfinite(t).all()) for t in tensors_in(v)) for v in value]
    return torch.tensor(flags) if any(flags) else None


def _items(parts: BatchParts, dealt: int) -> int:
    """How many items a batch holds: as many as were dealt, or fewer at the end of a stream."""
    lengths: Sequence[int] = (length_of(parts.inputs), length_of(parts.target))
    return dealt if dealt in lengths else lengths[0]
