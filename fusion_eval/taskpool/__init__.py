"""Task pools: what turns a model into a report."""

from __future__ import annotations

from typing import Any

from fusion_eval.lazy import public_name

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
    return public_name(__name__, _WHERE, name)
