"""The names of `lmms_eval` that multimodal task files import, supplied by this package."""

from __future__ import annotations

from fusion_eval.harness.multimodal.peer.hook import multimodal_names

__all__ = ["multimodal_names"]
