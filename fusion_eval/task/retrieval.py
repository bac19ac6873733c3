"""Retrieval: a score per document against (relevance, query) pairs, metrics averaged over queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusion_eval.errors import DataError, Fault
from fusion_eval.task.battery import MakeMetric, MetricUnavailable, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import TensorPredict
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric


def _of(name: str, **options: Any) -> MakeMetric:
    return metric_of(f"torchmetrics.retrieval:Retrieval{name}", ignores=True, **options)


BATTERY = OfferedBattery(
    "retrieval",
    {
        "retrieval_map": Offer(_of("MAP")),
        "ndcg": Offer(_of("NormalizedDCG")),
        "mrr": Offer(_of("MRR")),
        "precision": Offer(_of("Precision")),
        "recall": Offer(_of("Recall")),
        "precision_at_5": Offer(_of("Precision", top_k=5), default=False),
        "precision_at_10": Offer(_of("Precision", top_k=10), default=False),
        "recall_at_5": Offer(_of("Recall", top_k=5), default=False),
        "recall_at_10": Offer(_of("Recall", top_k=10), default=False),
        "ndcg_at_10": Offer(_of("NormalizedDCG", top_k=10), default=False),
        "hit_rate_at_1": Offer(_of("HitRate", top_k=1), default=False),
        "hit_rate_at_10": Offer(_of("HitRate", top_k=10), default=False),
        "r_precision": Offer(_of("RPrecision"), default=False),
        "auroc": Offer(_of("AUROC"), default=False),
    },
)
_GRADED = ("RetrievalNormalizedDCG",)


def positive_ranks(scores: Tensor) -> Tensor:
    """Ranks from 1 of the scores' values, equal scores sharing one: the same order, and never zero or below.

    torchmetrics counts a document whose score is not positive as irrelevant, which is wrong for logits and distances.
    """
    _, ranks = torch.unique(scores, sorted=True, return_inverse=True)
    positive: Tensor = ranks + 1
    return positive.to(torch.float64)


def split_target(target: Any) -> tuple[Tensor, Tensor]:
    """(relevance, query of each document).

    Raises:
        DataError: the target is something else.
    """
    if isinstance(target, tuple | list) and len(target) == 2:
        return target[0], target[1].long()
    raise DataError(
        Fault(
            "the target of retrieval",
            f"a {type(target).__name__}",
            "a pair (relevance of each document, query of each document)",
        )
    )


def _feed(metric: Metric, preds: Any, target: Any) -> None:
    """Ranks instead of scores.

    Raises:
        MetricUnavailable: graded relevance for a metric that takes zeros and ones.
    """
    relevance, queries = split_target(target)
    if type(metric).__name__ not in _GRADED:
        if bool(((relevance != 0) & (relevance != 1)).any()):
            raise MetricUnavailable("the relevance is graded, and this metric takes zeros and ones")
        relevance = relevance.long()
    metric.update(positive_ranks(preds.reshape(-1)), relevance, indexes=queries)


RETRIEVAL = Task(
    battery=BATTERY,
    predict_fn=TensorPredict(),
    requires_num_classes=False,
    description="Retrieval: a score per document against (relevance, query); averaged over queries.",
    feed=_feed,
    unit="query",
)
