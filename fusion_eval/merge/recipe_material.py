"""What a recipe is made of, and what comes of it: weights with their config and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Material:
    """A model.

    Args:
        checkpoint: its weights.
        config: the content of its config.json, empty where it has none.
        generation: the content of its generation_config.json, or None.
        tokenizer: its tokenizer, or None.
        origin: the folder with its other files, or None.
        changed: whether the tokenizer is not the one in that folder.
    """

    checkpoint: Checkpoint
    config: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] | None = None
    tokenizer: Tokenizer | None = None
    origin: Path | None = None
    changed: bool = False
