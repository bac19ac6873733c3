"""Class names as texts, and their embeddings: what zero-shot classifiers are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from fusion_eval.errors import CheckpointError, Fault, FusionEvalError
from fusion_eval.modelpool.clip_classnames import ClassPrompts, class_prompts

_BATCH: Final = 256
_PROBE: Final = "a"
_ROUNDING: Final = 1e-3
"""Of a cosine: far above what half precision does to an embedding, far below what another pooled position does."""

Encode = Callable[[list[str]], Mapping[str, Tensor]]
"""From texts to the keywords of a text tower."""


class ClassTexts:
    """Names and prompts by task.

    Args:
        classes: class names by task, for data sets that are not among the twenty of the benchmarks.
        templates: prompts by task, with `{}` in the place of the class name.
    """

    def __init__(
        self, classes: Mapping[str, Sequence[str]] | None, templates: Mapping[str, Sequence[str]] | None
    ) -> None:
        self._classes, self._templates = dict(classes or {}), dict(templates or {})

    def faults(self, tasks: Sequence[str]) -> list[Fault]:
        """Tasks without class names."""
        found: list[Fault] = []
        for task in tasks:
            try:
                self.prompts(task)
            except FusionEvalError as error:
                found.extend(error.faults)
        return found

    def prompts(self, task: str) -> ClassPrompts:
        """Names and prompts of a task."""
        return class_prompts(task, self._classes, self._templates)


def class_embeddings(prompts: ClassPrompts, encode: Encode, embed: Callable[..., Tensor]) -> Tensor:
    """Per class the normalised mean of its prompts' normalised embeddings [classes, size].

    Args:
        prompts: of a task.
        encode: the tokenizer.
        embed: the text tower; takes what `encode` gives as keywords.
    """
    texts = [text for index in range(len(prompts.classes)) for text in prompts.texts(index)]
    parts = []
    with torch.inference_mode():
        for start in range(0, len(texts), _BATCH):
            parts.append(F.normalize(embed(**encode(texts[start : start + _BATCH])).float(), dim=-1))
        means = torch.cat(parts).reshape(len(prompts.classes), len(prompts.templates), -1).mean(1)
        return F.normalize(means, dim=-1).clone()


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a model's folder.

    Raises:
        CheckpointError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(Fault(str(folder), f"no tokenizer ({first})", "the model's own")) from error


def encoding(tokenizer: Any, context: int, embed: Callable[..., Tensor]) -> Encode:
    """How texts become tokens for a tower: padded to its whole context where it looks at the padding.

    A tower that pools the last position (SigLIP, arXiv:2303.15343) was trained on texts of one length, without a mask.
    To others padding means nothing, so a batch is padded to its longest text.

    Args:
        tokenizer: the model's own.
        context: positions of the tower.
        embed: the tower.
    """
    length = min(context, int(tokenizer.model_max_length))
    whole = {"truncation": True, "max_length": length, "return_tensors": "pt"}
    if not _looks_at_padding(tokenizer, whole, embed):
        return lambda texts: dict(tokenizer(texts, padding=True, **whole))
    return lambda texts: {"input_ids": tokenizer(texts, padding="max_length", **whole)["input_ids"]}


def _looks_at_padding(tokenizer: Any, whole: Mapping[str, Any], embed: Callable[..., Tensor]) -> bool:
    """Whether the embedding of a short text is another one when the text is padded to the whole context."""
    short, padded = tokenizer([_PROBE], **whole), tokenizer([_PROBE], padding="max_length", **whole)
    with torch.inference_mode():
        first, second = (embed(**tokens).float() for tokens in (short, padded))
    return not bool(F.cosine_similarity(first, second).min() >= 1 - _ROUNDING)
