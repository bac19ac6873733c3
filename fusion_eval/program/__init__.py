"""Programs: the sentences "check, merge, save, evaluate, report"."""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "BaseProgram": "base_program",
    "EvaluateProgram": "evaluate",
    "FusionProgram": "fusion",
    "InspectProgram": "inspect",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"fusion_eval.program.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'fusion_eval.program' has no attribute '{name}'")
