"""Groupings against groups: clustering agreement, and association of nominal variables."""

from __future__ import annotations

from typing import Any

from fusion_eval.task.battery import MakeMetric, Offer, OfferedBattery, metric_of
from fusion_eval.task.predict import LabelPredict
from fusion_eval.task.task import Task


def _cluster(name: str, **options: Any) -> MakeMetric:
    return metric_of(f"torchmetrics.clustering:{name}", **options)


def _nominal(name: str, **options: Any) -> MakeMetric:
    return metric_of(f"torchmetrics.nominal:{name}", classes="num_classes", **options)


CLUSTERING_BATTERY = OfferedBattery(
    "clustering",
    {
        "adjusted_rand": Offer(_cluster("AdjustedRandScore")),
        "normalized_mutual_info": Offer(_cluster("NormalizedMutualInfoScore")),
        "adjusted_mutual_info": Offer(metric_of("fusion_eval.task.metric.mutual:ExactAdjustedMutualInfo")),
        "homogeneity": Offer(_cluster("HomogeneityScore")),
        "completeness": Offer(_cluster("CompletenessScore")),
        "v_measure": Offer(_cluster("VMeasureScore")),
        "fowlkes_mallows": Offer(_cluster("FowlkesMallowsIndex"), default=False),
        "rand": Offer(_cluster("RandScore"), default=False),
        "mutual_info": Offer(_cluster("MutualInfoScore"), default=False),
        "cluster_accuracy": Offer(
            _cluster("ClusterAccuracy"), {"torch_linear_assignment": "clustering"}, default=False
        ),
    },
)

NOMINAL_BATTERY = OfferedBattery(
    "nominal",
    {
        "cramers_v": Offer(_nominal("CramersV")),
        "contingency": Offer(_nominal("PearsonsContingencyCoefficient")),
        "theils_u": Offer(_nominal("TheilsU")),
        "tschuprows_t": Offer(_nominal("TschuprowsT")),
    },
)

CLUSTERING = Task(
    battery=CLUSTERING_BATTERY,
    predict_fn=LabelPredict(),
    requires_num_classes=False,
    description="Clustering: group labels (N,), or scores (N, K), against true groups (N,), up to renaming.",
)

NOMINAL = Task(
    battery=NOMINAL_BATTERY,
    predict_fn=LabelPredict(),
    description="Nominal association: labels (N,), or scores (N, C), against labels (N,) of num_classes values.",
)
