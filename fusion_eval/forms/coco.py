"""COCO's mean average precision and recall as functions of the images' weights.

Detections are matched once per image, label and IoU threshold (greedily by score, as COCO does it); under weights only
the sums along the ranked list of detections change. All sizes, at most 100 detections per image, no crowds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fusion_eval.stats.arrays import Floats, Ints
from fusion_eval.stats.item_metric import ItemMetric, additive_metric

_THRESHOLDS = {"map": np.linspace(0.5, 0.95, 10), "map_50": np.array([0.5]), "map_75": np.array([0.75])}
_RECALLED = {"mar_1": 1, "mar_10": 10, "mar_100": 100}
_RECALLS = np.linspace(0.0, 1.0, 101)
_MOST_DETECTIONS = 100
_MOST_WORK = 40_000  # ranked detections x thresholds, each of which every resample walks along
_MOST_CURVES = 100  # labels x thresholds

Boxes = Mapping[str, Tensor]


def coco_form(name: str, preds: Sequence[Boxes], target: Sequence[Boxes]) -> ItemMetric | None:
    """`map`, `map_50`, `map_75` or `mar_1`, `mar_10`, `mar_100`; None for sizes, crowds, and large data sets."""
    if name in _RECALLED:
        return _recall_form(name, preds, target)
    thresholds = _THRESHOLDS.get(name)
    if thresholds is None or any("iscrowd" in truth and bool(truth["iscrowd"].any()) for truth in target):
        return None
    labels, detections = _labels(target), sum(len(found["labels"]) for found in preds)
    if detections * len(thresholds) > _MOST_WORK or len(labels) * len(thresholds) > _MOST_CURVES:
        return None
    return _metric(name, [_ranked(label, preds, target, thresholds) for label in labels], len(preds))


def _recall_form(name: str, preds: Sequence[Boxes], target: Sequence[Boxes]) -> ItemMetric | None:
    """The share of objects that the first detections of every image find: per label, then the mean over labels."""
    if any("iscrowd" in truth and bool(truth["iscrowd"].any()) for truth in target):
        return None
    labels, thresholds = _labels(target), _THRESHOLDS["map"]
    found, objects = np.zeros((2, len(preds), len(labels)))
    for c, label in enumerate(labels):
        for i, (mine, truth) in enumerate(zip(preds, target, strict=True)):
            chosen, theirs = mine["labels"] == label, truth["boxes"][truth["labels"] == label]
            order = np.argsort(-mine["scores"][chosen].double().numpy(), kind="stable")[: _RECALLED[name]]
            found[i, c] = _matches(mine["boxes"][chosen][order], theirs, thresholds).sum() / len(thresholds)
            objects[i, c] = len(theirs)

    def value_of(sums: Floats) -> Floats:
        hits, every = np.split(sums, 2, axis=1)
        recall = np.divide(hits, every, out=np.zeros_like(hits), where=every > 0)
        count = (every > 0).sum(axis=1)
        return np.asarray(np.divide(recall.sum(axis=1), count, out=np.full(len(sums), np.nan), where=count > 0))

    return additive_metric(name, np.concatenate([found, objects], axis=1), value_of)


def _labels(target: Sequence[Boxes]) -> list[int]:
    return sorted({int(label) for truth in target for label in truth["labels"].tolist()})


class _Ranked:
    """One label's detections by falling score.

    Args:
        image: the image of each, (D,).
        hits: whether each matches an object, per threshold (T, D).
        objects: the label's objects per image, (N,).
    """

    def __init__(self, image: Ints, hits: NDArray[np.bool_], objects: Floats) -> None:
        self.image, self.hits, self.objects = image, hits, objects

    def precision(self, weights: Floats) -> Floats:
        """Mean precision over 101 recalls and all thresholds (B,), for weights of images (B, N)."""
        total = weights @ self.objects
        ranked = weights[:, self.image]
        values = [self._at(ranked, ranked * hit, total) for hit in self.hits]
        return np.asarray(np.where(total > 0, np.mean(values, axis=0), np.nan))

    def _at(self, ranked: Floats, hits: Floats, total: Floats) -> Floats:
        found, right = np.cumsum(ranked, axis=1), np.cumsum(hits, axis=1)
        precision = np.divide(right, found, out=np.zeros_like(right), where=found > 0)
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        out = np.zeros(len(ranked))
        for b in np.flatnonzero(total > 0):
            first = np.searchsorted(right[b] / total[b], _RECALLS, side="left")
            inside = first[first < envelope.shape[1]]
            out[b] = envelope[b, inside].sum() / len(_RECALLS)
        return out

    def take(self, index: Ints, size: int) -> _Ranked:
        """The same on other images, repeated ones too."""
        copies = [np.flatnonzero(index == image) for image in range(size)]
        places = [(copy, d) for d, image in enumerate(self.image) for copy in copies[image]]
        image = np.array([copy for copy, _ in places], dtype=np.int64)
        chosen = np.array([d for _, d in places], dtype=np.int64)
        return _Ranked(image, self.hits[:, chosen], self.objects[index])


def _metric(name: str, labels: list[_Ranked], images: int) -> ItemMetric:
    def of_weights(weights: Floats) -> Floats:
        values = np.stack([label.precision(weights) for label in labels])
        exists = ~np.isnan(values)
        count = exists.sum(axis=0)
        total = np.where(exists, values, 0.0).sum(axis=0)
        return np.asarray(np.divide(total, count, out=np.full(len(weights), np.nan), where=count > 0))

    def take(index: Any) -> ItemMetric:
        return _metric(name, [label.take(np.asarray(index), images) for label in labels], len(index))

    return ItemMetric(name, images, of_weights, take)


def _ranked(label: int, preds: Sequence[Boxes], target: Sequence[Boxes], thresholds: Floats) -> _Ranked:
    scores, images, hits = [], [], []
    objects = np.zeros(len(preds))
    for i, (found, truth) in enumerate(zip(preds, target, strict=True)):
        mine, theirs = found["labels"] == label, truth["labels"] == label
        objects[i] = int(theirs.sum())
        order = np.argsort(-found["scores"][mine].double().numpy(), kind="stable")[:_MOST_DETECTIONS]
        scores.append(found["scores"][mine].double().numpy()[order])
        images.append(np.full(len(order), i))
        hits.append(_matches(found["boxes"][mine][order], truth["boxes"][theirs], thresholds))
    ranking = np.argsort(-np.concatenate(scores), kind="stable")
    return _Ranked(np.concatenate(images)[ranking], np.concatenate(hits, axis=1)[:, ranking], objects)


def _matches(boxes: Tensor, objects: Tensor, thresholds: Floats) -> NDArray[np.bool_]:
    """Which boxes (D), best first, match an object of their own at each threshold (T, D)."""
    from torchvision.ops import box_iou

    matched = np.zeros((len(thresholds), len(boxes)), dtype=bool)
    if not len(boxes) or not len(objects):
        return matched
    overlaps = box_iou(boxes.double(), objects.double()).numpy()
    for t, threshold in enumerate(thresholds):
        free = np.ones(len(objects), dtype=bool)
        for d, row in enumerate(overlaps):
            candidates = np.flatnonzero(free & (row >= min(threshold, 1 - 1e-10)))
            if len(candidates):
                free[candidates[np.argmax(row[candidates])]] = False
                matched[t, d] = True
    return matched
