"""Names of single models and tasks in task files of others: tables, since nothing in the files themselves tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHOWN: Final = ("d170", "dc100", "dc200", "llava_wilder", "livebench")
"""Parts of names of tasks whose `process_results` gets the pictures in forks of 2024, which had no key for it."""

_FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "llava": ("llava_hf", "llava"),
    "llava_next": ("llava_next", "llava_hf", "llava"),
    "llava_next_video": ("llava_next_video", "llava_vid", "llava_hf", "llava"),
    "llava_onevision": ("llava_onevision", "llava_hf", "llava"),
    "qwen2_vl": ("qwen2_vl", "qwen_vl"),
    "qwen2_5_vl": ("qwen2_5_vl", "qwen2_vl", "qwen_vl"),
    "qwen3_vl": ("qwen3_vl", "qwen2_5_vl", "qwen2_vl", "qwen_vl"),
    "qwen2_5_omni": ("qwen2_5_omni",),
    "qwen2_audio": ("qwen2_audio",),
    "internvl": ("internvl3", "internvl2", "internvl_hf", "internvl"),
    "idefics2": ("idefics2",),
    "idefics3": ("idefics3", "idefics2"),
    "smolvlm": ("smolvlm", "idefics3"),
    "gemma3": ("gemma3",),
    "paligemma": ("paligemma",),
    "mllama": ("llama_vision", "mllama"),
    "instructblip": ("instructblip",),
    "pixtral": ("pixtral",),
}


def families(kind: str) -> tuple[str, ...]:
    """Names that task files use for models of an architecture, the nearest first.

    Args:
        kind: `model_type` of the model's configuration.
    """
    return _FAMILIES.get(kind, (kind,) if kind else ())
