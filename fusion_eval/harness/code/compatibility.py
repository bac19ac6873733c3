"""Lets tasks written for BigCode's harness run unchanged: its module names, and `evaluate.load("code_eval")`.

The metric `code_eval` of the `evaluate` library executes code unprotected; while a task is loaded or scored, its name
means the sandboxed one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.code.judge import current_judge
from fusion_eval.harness.code.passing import KS, count, estimates
from fusion_eval.harness.code.similarity import evaluate_bleu, exact_match
from fusion_eval.harness.code.task import Task
from fusion_eval.sandbox import Limits, Program, Status, Verdict

Details = dict[int, list[tuple[int, dict[str, Any]]]]


def code_eval(
    predictions: Sequence[Sequence[str]],
    references: Sequence[str],
    k: Sequence[int] = KS,
    num_workers: int = 0,
    timeout: float = 3.0,
) -> tuple[dict[str, float], Details]:
    """pass@k and details in the form of the metric of that name, from the sandbox of the current scoring.

    Args:
        predictions: candidates of each problem.
        references: tests of each problem, which call the candidate's names.
        k: the sample sizes.
        num_workers: accepted and not used; the sandbox has its own.
        timeout: seconds of CPU time.

    Raises:
        SandboxError: no sandbox is open.
    """
    limits = replace(Limits(), cpu=float(timeout), wall=0.0)
    programs = [
        [Program(candidate, str(tests), limits=limits) for candidate in row]
        for row, tests in zip(predictions, references, strict=True)
    ]
    verdicts = current_judge().score(programs)
    details = {
        task: [(number, _detail(task, number, verdict)) for number, verdict in enumerate(row)]
        for task, row in enumerate(verdicts)
    }
    return dict(estimates([count(row) for row in verdicts], k)), details


def _detail(task: int, number: int, verdict: Verdict) -> dict[str, Any]:
    named = {Status.PASSED: "passed", Status.TIMEOUT: "timed out"}
    result = named.get(verdict.status, f"failed: {verdict.detail}")
    return {"task_id": task, "passed": verdict.passed, "result": result, "completion_id": number}


class _Metric:
    """A metric with the `compute` of the `evaluate` library."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        self.compute = compute


def _bleu(predictions: Sequence[str], references: Sequence[Any], max_order: int = 4, smooth: bool = False) -> Any:
    rows = [[row] if isinstance(row, str) else list(row) for row in references]
    return evaluate_bleu(predictions, rows, max_order, smooth)


def _exact(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    return {"exact_match": exact_match(predictions, references)}


_METRICS: dict[str, Callable[..., Any]] = {
    "code_eval": code_eval,
    "Muennighoff/code_eval_octopack": code_eval,
    "bleu": _bleu,
    "exact_match": _exact,
}


def load_metric(name: str, *args: Any, **options: Any) -> Any:
    """The metric of that name: the sandboxed code_eval, BLEU, exact match, else that of the `evaluate` library.

    Raises:
        ConfigError: a metric that needs a library which is not installed.
    """
    if name in _METRICS:
        return _Metric(_METRICS[name])
    hidden = sys.modules.pop("evaluate", None)
    try:
        real = importlib.import_module("evaluate")
    except ImportError:
        found = f"'{name}', and the evaluate library is not installed"
        raise ConfigError(
            Fault("evaluate.load", found, f"one of {', '.join(_METRICS)}", "Run: pip install evaluate")
        ) from None
    finally:
        if hidden is not None:
            sys.modules["evaluate"] = hidden
    return real.load(name, *args, **options)


@contextmanager
def stand_ins() -> Iterator[None]:
    """While open, `evaluate.load` is `load_metric`, and `bigcode_eval` is importable where it is not installed."""
    modules = {"evaluate": _module("evaluate", load=load_metric)}
    if importlib.util.find_spec("bigcode_eval") is None:
        base = _module("bigcode_eval.base", Task=Task)
        tasks = _module("bigcode_eval.tasks", __path__=[])
        modules |= {
            "bigcode_eval": _module("bigcode_eval", base=base, tasks=tasks, __path__=[]),
            "bigcode_eval.base": base,
            "bigcode_eval.tasks": tasks,
        }
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    return module
