"""The pool of CLIP vision towers, with zero-shot heads from class names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from torch import nn

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.modelpool.huggingface import TransformersPool
from fusion_eval.modelpool.model_source import model_source
from fusion_eval.modelpool.zero_shot import ZeroShotHeads

_PROJECTED = "CLIPVisionModelWithProjection"


@final
class CLIPVisionPool(TransformersPool):
    """Vision towers fine-tuned from one CLIP, whose text tower gives the head of every task.

    Args:
        base: folder or hub id of a whole CLIP, or of its vision tower.
        experts: towers by task, or a list of tasks beside a `pattern`, as in `HuggingFacePool`.
        clip: the whole CLIP that gives the heads, by default the base.
        auto_class: CLIPVisionModel, or CLIPVisionModelWithProjection for towers that are saved with the projection.
        classes: class names by task, for data sets that are not among the twenty.
        templates: prompts by task, with `{}` in the place of the class name.
        cache: folder in which the heads are kept, see `ZeroShotHeads`.
        **kwargs: see `HuggingFacePool`.
    """

    left_out_silently = ("text_model.", "text_projection.", "visual_projection.", "logit_scale")

    def __init__(
        self,
        base: Any = None,
        experts: Any = None,
        *,
        clip: Any = None,
        auto_class: str = "CLIPVisionModel",
        classes: Mapping[str, Sequence[str]] | None = None,
        templates: Mapping[str, Sequence[str]] | None = None,
        cache: str | Path | bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(base, experts, auto_class=auto_class, **kwargs)
        if clip is None and self._base is None:
            raise ConfigError(Fault("modelpool.clip", "none, in a pool without base", "the CLIP that gives the heads"))
        source = model_source(clip if clip is not None else self._base)
        self._zero_shot = ZeroShotHeads(
            source.path,
            source.revision,
            classes=classes,
            templates=templates,
            projected=auto_class == _PROJECTED,
            cache=cache,
        )

    def head(self, task: str) -> nn.Module:
        """The zero-shot head of a task, or the one that `heads` gives.

        Raises:
            ConfigError: no class names are known for the task.
        """
        given = super().head(task)
        return given if given is not None else self._zero_shot.head(task)
