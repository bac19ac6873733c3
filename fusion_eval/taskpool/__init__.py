"""Task pools: what turns a model into a report."""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "BaseTaskPool": "base_pool",
    "CLIPVisionModelTaskPool": "clip_vision",
    "CodeTaskPool": "code",
    "DummyTaskPool": "dummy",
    "LanguageModelTaskPool": "language",
    "ImageClassificationTaskPool": "image_classification",
    "JoinedTaskPool": "joined",
    "MultimodalTaskPool": "multimodal",
    "TaskPool": "task_pool",
    "TextClassificationTaskPool": "text_classification",
    "ZeroShotTaskPool": "zero_shot",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"fusion_eval.taskpool.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'fusion_eval.taskpool' has no attribute '{name}'")
