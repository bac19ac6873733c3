"""Multimodal tasks: folders of YAML files and Python hooks in the manner of LMMS-Eval, on the language harness."""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "MultimodalSuite": "suite",
    "MultimodalTask": "task",
    "get_task": "named",
    "include_path": "named",
    "make_multimodal_suite": "suite",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
