"""Model pools: a base and experts by name, read when they are needed."""

from __future__ import annotations

from typing import Any

from fusion_eval.lazy import public_name

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
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
