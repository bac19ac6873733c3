"""COCO's mean average precision and recall, over all sizes or one, as functions of the images' weights.

Detections are matched once per image, label and IoU threshold (greedily by score, as COCO does it); under weights only
the sums along the ranked list of detections change. Crowds, and objects of another size, take detections away without
counting; so do detections of another size that match nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusion_eval.stats.arrays import Floats, Ints
from fusion_eval.stats.item_metric import ItemMetric, additive_metric

_ALL = np.array(torch.linspace(0.5, 0.95, 10).tolist())  # single precision, as torchmetrics passes them on
_SIZES = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
_ANY = (0.0, 1e10)
_PRECISIONS = {
    "map": (_ALL, _ANY),
    "map_50": (np.array([0.5]), _ANY),
    "map_75": (np.array([0.75]), _ANY),
    **{f"map_{size}": (_ALL, limits) for size, limits in _SIZES.items()},
}
_MOST_DETECTIONS = 100
_RECALLS_OF = {
    **{f"mar_{most}": (most, _ANY) for most in (1, 10, 100)},
    **{f"mar_{size}": (_MOST_DETECTIONS, limits) for size, limits in _SIZES.items()},
}
_RECALLS = np.array(torch.linspace(0.0, 1.0, 101).tolist())
_MOST_WORK = 40_000  # ranked detections x thresholds, each of which every resample walks along
_MOST_CURVES = 100  # labels x thresholds

Boxes = Mapping[str, Tensor]
Limits = tuple[float, float]


def coco_form(name: str, preds: Sequence[Boxes], target: Sequence[Boxes]) -> ItemMetric | None:
    """`map`, `map_50`, `map_75`, `map_small`, ..., `mar_1`, `mar_10`, `mar_100`, `mar_small`, ...; None for large data.

    The data are large where the ranked detections, at all thresholds, are more than 40,000.
    """
    if name in _RECALLS_OF:
        return _recall_form(name, preds, target)
    if name not in _PRECISIONS:
        return None
    thresholds, limits = _PRECISIONS[name]
    labels, detections = _labels(target), sum(len(found["labels"]) for found in preds)
    if detections * len(thresholds) > _MOST_WORK or len(labels) * len(thresholds) > _MOST_CURVES:
        return None
    return _metric(name, [_ranked(label, preds, target, thresholds, limits) for label in labels], len(preds))


def _recall_form(name: str, preds: Sequence[Boxes], target: Sequence[Boxes]) -> ItemMetric | None:
    """The share of objects that the first detections of every image find: per label, then the mean over labels."""
    most, limits = _RECALLS_OF[name]
    labels = _labels(target)
    found, objects = np.zeros((2, len(preds), len(labels)))
    for c, label in enumerate(labels):
        for i, (mine, truth) in enumerate(zip(preds, target, strict=True)):
            pairing = _paired(label, mine, truth, _ALL, limits, most)
            found[i, c] = pairing.hits.sum() / len(_ALL)
            objects[i, c] = pairing.objects

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
        counted: whether it counts at all, per threshold (T, D).
        objects: the label's objects per image, (N,).
    """

    def __init__(self, image: Ints, hits: NDArray[np.bool_], counted: NDArray[np.bool_], objects: Floats) -> None:
        self.image, self.hits, self.counted, self.objects = image, hits, counted, objects

    def precision(self, weights: Floats) -> Floats:
        """Mean precision over 101 recalls and all thresholds (B,), for weights of images (B, N)."""
        total = weights @ self.objects
        ranked = weights[:, self.image]
        pairs = zip(self.hits, self.counted, strict=True)
        values = [self._at(ranked * counted, ranked * hit, total) for hit, counted in pairs]
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
        return _Ranked(image, self.hits[:, chosen], self.counted[:, chosen], self.objects[index])


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


@dataclass(frozen=True, slots=True)
class _Pairing:
    """One image's detections of one label, best first, and how they pair with its objects.

    Args:
        scores: (D,).
        hits: whether each finds an object that counts, per threshold (T, D).
        counted: whether it is a hit or a false alarm, not left out, per threshold (T, D).
        objects: how many objects count.
    """

    scores: Floats
    hits: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    objects: int


def _ranked(label: int, preds: Sequence[Boxes], target: Sequence[Boxes], thresholds: Floats, limits: Limits) -> _Ranked:
    pairings = [_paired(label, mine, truth, thresholds, limits) for mine, truth in zip(preds, target, strict=True)]
    ranking = np.argsort(-np.concatenate([each.scores for each in pairings]), kind="stable")
    images = np.repeat(np.arange(len(pairings)), [len(each.scores) for each in pairings])
    hits, counted = (
        np.concatenate([getattr(each, name) for each in pairings], axis=1)[:, ranking] for name in ("hits", "counted")
    )
    return _Ranked(images[ranking], hits, counted, np.array([each.objects for each in pairings], dtype=np.float64))


def _paired(
    label: int, mine: Boxes, truth: Boxes, thresholds: Floats, limits: Limits, most: int = _MOST_DETECTIONS
) -> _Pairing:
    chosen, theirs = mine["labels"] == label, truth["labels"] == label
    scores = mine["scores"][chosen].double().numpy()
    order = np.argsort(-scores, kind="stable")[:most]
    boxes, objects = mine["boxes"][chosen][torch.from_numpy(order)].double(), truth["boxes"][theirs].double()
    crowd = truth["iscrowd"][theirs].bool().numpy() if "iscrowd" in truth else np.zeros(len(objects), dtype=bool)
    ignored = crowd | _outside(_areas_of(truth, theirs, objects), limits)
    hits, taken = _matches(_overlaps(boxes, objects, crowd), thresholds, ignored, crowd)
    counted = hits | ~(taken | _outside(_areas(boxes), limits))
    return _Pairing(scores[order], hits, counted, int((~ignored).sum()))


def _areas(boxes: Tensor) -> Floats:
    return np.asarray(((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).numpy())


def _areas_of(truth: Boxes, chosen: Tensor, objects: Tensor) -> Floats:
    """The objects' areas: as given where they are, else their boxes'."""
    boxes = _areas(objects)
    if "area" not in truth:
        return boxes
    given = truth["area"][chosen].double().numpy()
    return np.asarray(np.where(given > 0, given, boxes))


def _outside(areas: Floats, limits: Limits) -> NDArray[np.bool_]:
    return np.asarray((areas < limits[0]) | (areas > limits[1]))


def _overlaps(boxes: Tensor, objects: Tensor, crowd: NDArray[np.bool_]) -> Floats:
    """Intersection over union (D, G); over the detection's own area for crowds."""
    if not len(boxes) or not len(objects):
        return np.zeros((len(boxes), len(objects)))
    low, high = torch.maximum(boxes[:, None, :2], objects[:, :2]), torch.minimum(boxes[:, None, 2:], objects[:, 2:])
    shared = np.asarray((high - low).clamp_min(0).prod(-1).numpy())
    own, theirs = _areas(boxes)[:, None], _areas(objects)[None]
    union = np.where(crowd[None], own, own + theirs - shared)
    ratio: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return ratio


def _matches(
    overlaps: Floats, thresholds: Floats, ignored: NDArray[np.bool_], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which detections (T, D), best first, find an object of their own that counts, and which one that is ignored."""
    found = np.zeros((2, len(thresholds), len(overlaps)), dtype=bool)
    for t, threshold in enumerate(thresholds):
        free = np.ones(overlaps.shape[1], dtype=bool)
        for d, row in enumerate(overlaps):
            near = (free | crowd) & (row >= min(threshold, 1 - 1e-10))
            for kind, group in enumerate((~ignored, ignored)):
                candidates = np.flatnonzero(near & group)
                if len(candidates):
                    best = candidates[len(candidates) - 1 - np.argmax(row[candidates][::-1])]
                    free[best] = False
                    found[kind, t, d] = True
                    break
    return found[0], found[1]
