"""Multimodal tasks: folders of YAML files and Python hooks in the manner of LMMS-Eval, on the language harness."""

from __future__ import annotations

from typing import Any

from fusion_eval.lazy import public_name

_WHERE = {
    "MultimodalSuite": "suite",
    "MultimodalTask": "task",
    "get_task": "named",
    "include_path": "named",
    "make_multimodal_suite": "suite",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
