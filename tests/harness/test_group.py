from __future__ import annotations

import math

import numpy as np
import pytest

from fusion_eval.harness.group import aggregate_group, independent_stderr, pooled_stderr, weighted_mean
from fusion_eval.harness.outcome import MetricValue, TaskOutcome
from fusion_eval.harness.plan import GroupPlan
from fusion_eval.harness.spec import GroupMetric, GroupSpec, TaskSpec


def task(name: str, value: float, error: float | None, n: int, pipeline: str = "none") -> TaskOutcome:
    outcome = TaskOutcome(name, TaskSpec(task=name), 1)
    outcome.values[f"acc,{pipeline}"] = MetricValue("acc", pipeline, value, error, n, True)
    return outcome


def test_means_over_documents_and_over_tasks() -> None:
    tasks = {"a": task("a", 1.0, 0.1, 30), "b": task("b", 0.0, 0.2, 10)}
    for weighted, mean in ((True, 0.75), (False, 0.5)):
        spec = GroupSpec("g", aggregate_metric_list=(GroupMetric("acc", weight_by_size=weighted),))
        (value,) = aggregate_group(GroupPlan(spec, "g", ["a", "b"]), tasks).values.values()
        assert value.value == pytest.approx(mean)
        assert value.n == 40


def test_pooled_errors_equal_the_error_of_all_documents_together() -> None:
    generator = np.random.default_rng(0)
    parts = [generator.normal(0, 2, 400), generator.normal(0, 2, 1600)]
    errors = [float(p.std(ddof=1) / math.sqrt(len(p))) for p in parts]
    whole = np.concatenate(parts)
    assert pooled_stderr(errors, [400, 1600]) == pytest.approx(whole.std(ddof=1) / math.sqrt(2000), rel=1e-2)
    assert independent_stderr([3.0, 4.0]) == 2.5
    assert weighted_mean([1, 0], [3, 1]) == 0.75


def test_a_missing_error_leaves_the_groups_out_and_a_missing_metric_is_noted() -> None:
    tasks = {"a": task("a", 1.0, None, 5), "b": task("b", 0.0, 0.2, 5), "c": task("c", 0.0, 0.2, 5, "other")}
    spec = GroupSpec("g", aggregate_metric_list=(GroupMetric("acc", ("none",)),))
    outcome = aggregate_group(GroupPlan(spec, "g", ["a", "b", "c"]), tasks)
    assert outcome.values["acc,none"].stderr is None
    assert outcome.notes == ["acc,none is missing in 1 of 3 tasks: c"]
