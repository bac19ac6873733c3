"""Filters: what happens to the responses of all requests before they are scored."""

from __future__ import annotations

from typing import Any

from fusion_eval.lazy import public_name

_WHERE = {
    "EachFilter": "base",
    "Filter": "base",
    "Pipeline": "pipeline",
    "build_pipeline": "pipeline",
    "default_pipeline": "pipeline",
    "filter_names": "pipeline",
    "get_filter": "pipeline",
    "register_filter": "base",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
