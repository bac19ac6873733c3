"""Looking at a pool before merging it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusion_eval.lazy import public_name

if TYPE_CHECKING:
    from fusion_eval.program.inspect.program import InspectProgram as InspectProgram

_WHERE = {
    "InspectProgram": "program",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
