"""CLIP zero-shot classification: a vision tower, and for each task a head from its class names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.mixins import auto_register_config
from fusion_eval.taskpool.image_classification import ImageClassificationTaskPool

_HEADS = "fusion_eval.modelpool.ZeroShotHeads"
_PROCESSOR = "transformers.CLIPImageProcessor.from_pretrained"


@auto_register_config
class CLIPVisionModelTaskPool(ImageClassificationTaskPool):
    """Accuracy and loss of CLIP vision towers, with the heads and the image processor of the CLIP they descend from.

    Args:
        test_datasets: data sets by task.
        base_model: folder or hub id of the whole CLIP.
        revision: its commit, tag or branch.
        projected: the towers' output is in the shared space already (CLIPVisionModelWithProjection).
        classes: class names by task, for data sets that are not among the twenty of the benchmarks.
        templates: prompts by task, with `{}` in the place of the class name.
        processor: by default the CLIP's image processor.
        heads: by default zero-shot heads.
        dataloader_kwargs: keywords of `torch.utils.data.DataLoader`.
        **kwargs: see `ClassificationTaskPool`.
    """

    def __init__(
        self,
        test_datasets: Mapping[str, Any],
        *,
        base_model: str = "openai/clip-vit-base-patch32",
        revision: str | None = None,
        projected: bool = False,
        classes: Mapping[str, Sequence[str]] | None = None,
        templates: Mapping[str, Sequence[str]] | None = None,
        processor: Any = None,
        heads: Any = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if heads is None:
            named = {"model": base_model, "revision": revision, "projected": projected}
            heads = {"_target_": _HEADS, **named, "classes": classes, "templates": templates}
        if processor is None:
            source = {"pretrained_model_name_or_path": base_model, "revision": revision or "main"}
            processor = {"_target_": _PROCESSOR, **source}
        super().__init__(test_datasets, processor=processor, heads=heads, dataloader_kwargs=dataloader_kwargs, **kwargs)
