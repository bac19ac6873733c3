"""Comparing models: evaluated once each, tested by items and seeds; from Python, of a pool, or of finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusion_eval.lazy import public_name

if TYPE_CHECKING:
    from fusion_eval.program.compare.models import compare as compare
    from fusion_eval.program.compare.program import CompareProgram as CompareProgram

_WHERE = {
    "compare": "models",
    "CompareProgram": "program",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
