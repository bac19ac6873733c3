"""From a code task's result to the report's."""

from __future__ import annotations

import numpy as np

from fusion_eval.harness.code.generate import Options
from fusion_eval.harness.code.scoring import CodeResult
from fusion_eval.report.values import TaskResult, Value

_COUNTS = ("num_failed_execution",)


def task_result(name: str, found: CodeResult, options: Options) -> TaskResult:
    """Values with intervals over problems; notes on everything that is not plainly a score."""
    number = len(found.problems)
    values = {}
    for metric, value in found.metrics.items():
        if not isinstance(value, (int, float)):
            continue
        interval = found.intervals.get(metric)
        bounds = None if interval is None else (interval.low, interval.high)
        error = None if interval is None or interval.stderr != interval.stderr else interval.stderr
        values[metric] = Value(float(value), error, number, metric not in _COUNTS, bounds)
    items = {"id": np.array(found.problems), "pass@1": np.array(found.values)} if found.values else {}
    partial = options.limit is not None or options.limit_start > 0 or bool(found.skipped)
    return TaskResult(name, values, number, partial, tuple(notes(found)), items)


def notes(found: CodeResult) -> list[str]:
    """What a reader must know."""
    told = []
    if not found.problems:
        told.append("not evaluated: " + "; ".join(dict.fromkeys(found.skipped.values())))
    elif found.skipped:
        reasons = "; ".join(f"{problem}: {why}" for problem, why in list(found.skipped.items())[:5])
        told.append(f"{len(found.skipped)} problems cannot be judged here ({reasons})")
    if found.unscored:
        told.append(f"{found.unscored} samples could not be scored (the machine, not the program)")
    starved = sum(verdict.starved for row in found.verdicts for verdict in row)
    if starved:
        told.append(f"{starved} of them got no processor, even when run alone")
    together = found.integrity.get("in_process", 0)
    if together:
        told.append(f"{together} verdicts come from one process for candidate and tests, which a candidate could fake")
    ends = ", ".join(f"{count} {status}" for status, count in found.statuses.items())
    if ends:
        told.append(f"samples: {ends}; sandbox: {found.sandbox_level}")
    return told
