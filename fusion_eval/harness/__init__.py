"""Declarative YAML tasks for language models: index, spec, prompts, requests, filters, metrics, engines.

Importing this package loads neither torch nor transformers nor datasets; engine files do when they are imported.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "TaskCatalog": "catalog",
    "TaskSpec": "spec",
    "GroupSpec": "spec",
    "MetricSpec": "spec",
    "Suite": "evaluate",
    "make_suite": "evaluate",
    "evaluate": "evaluate",
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
    "peer_names": "peer_names",
    "Outcome": "outcome",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_EXPORTS[name]}")
    return getattr(module, name)
