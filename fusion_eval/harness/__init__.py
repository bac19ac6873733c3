"""Declarative YAML tasks for language models: index, spec, prompts, requests, filters, metrics, engines.

Importing this package loads neither torch nor transformers nor datasets; engine files do when they are imported.
"""

from __future__ import annotations

from typing import Any

from fusion_eval.lazy import public_name

_WHERE = {
    "TaskCatalog": "catalog",
    "TaskSpec": "spec",
    "GroupSpec": "spec",
    "MetricSpec": "spec",
    "Suite": "suite",
    "make_suite": "suite",
    "evaluate": "suite",
    "RunOptions": "build",
    "DataSource": "dataset",
    "Task": "task",
    "ConfigurableTask": "yaml_task",
    "Request": "request",
    "Filter": "filter.base",
    "register_filter": "filter.base",
    "ContextSampler": "fewshot",
    "library": "catalog",
    "peer_tasks": "catalog",
    "Outcome": "outcome",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
