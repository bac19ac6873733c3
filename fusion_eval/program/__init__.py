"""Programs: the sentences "check, merge, save, evaluate, report"."""

from __future__ import annotations

import importlib
from typing import Any

from fusion_eval.lazy import public_name

_WHERE = {
    "BaseProgram": "base_program",
    "CompareProgram": "compare",
    "EvaluateProgram": "evaluate",
    "FusionProgram": "fusion",
    "InspectProgram": "inspect",
    "StudyProgram": "study",
}
_FORMERLY = {"compare_program": "compare", "study_program": "study", "study_merges": "study"}
"""Modules that configurations of earlier versions name, and the packages that have their public names now."""

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _FORMERLY:
        return importlib.import_module(f"{__name__}.{_FORMERLY[name]}")
    return public_name(__name__, _WHERE, name)
