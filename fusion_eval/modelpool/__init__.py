"""Model pools: a base and experts by name, read when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "BaseModelPool": "base_pool",
    "CLIPVisionPool": "clip_vision",
    "CheckpointPool": "checkpoint_pool",
    "DigitsPool": "digits",
    "HuggingFacePool": "huggingface",
    "ModulePool": "checkpoint_pool",
    "StateDictPool": "checkpoint_pool",
    "ZeroShotClassifiers": "zero_shot_classifier",
    "ZeroShotHeads": "zero_shot",
    "kinship": "kinship",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"fusion_eval.modelpool.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'fusion_eval.modelpool' has no attribute '{name}'")
