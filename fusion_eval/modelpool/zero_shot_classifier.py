"""Zero-shot classifiers of whole models with two towers (CLIP, SigLIP and their like), by their own text tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, EvaluationError, Fault, FusionEvalError
from fusion_eval.modelpool.clip_classnames import ClassPrompts, class_prompts
from fusion_eval.modelpool.hub import model_folder

_BATCH = 256


class ZeroShotClassifier(nn.Module):
    """A model with two towers as a classifier of pictures (CLIP, arXiv:2103.00020; SigLIP, arXiv:2303.15343).

    logits[i, c] = scale * <image_i, text_c> + bias, with unit embeddings.

    Args:
        model: gives `get_image_features`.
        texts: an embedding per class [classes, size].
    """

    texts: Tensor

    def __init__(self, model: Any, texts: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("texts", texts, persistent=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Logits [pictures, classes]."""
        images = F.normalize(embedding(self.model.get_image_features(pixel_values=pixel_values)).float(), dim=-1)
        logits: Tensor = images @ self.texts.T * self.model.logit_scale.float().exp()
        bias = getattr(self.model, "logit_bias", None)
        return logits if bias is None else logits + bias.float()


class ZeroShotClassifiers:
    """Classifiers by model and task; a model's text features of a task are computed once.

    Args:
        processor: folder or hub id of the model that the tokenizer comes with.
        revision: its commit, tag or branch.
        classes: class names by task, for data sets that are not among the twenty of the benchmarks.
        templates: prompts by task, with `{}` in the place of the class name.
    """

    def __init__(
        self,
        processor: str,
        revision: str | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        templates: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._processor, self._revision = processor, revision
        self._classes, self._templates = dict(classes or {}), dict(templates or {})
        self._tokenizer: Any = None
        self._made: dict[str, tuple[nn.Module, ZeroShotClassifier]] = {}

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

    def classifier(self, model: nn.Module, task: str) -> ZeroShotClassifier:
        """A model as the classifier of a task.

        Raises:
            ConfigError: a model without a text tower, or without a tokenizer.
            EvaluationError: text features that are not numbers.
        """
        known = self._made.get(task)
        if known is None or known[0] is not model:
            lost = [name for name in ("get_text_features", "get_image_features", "logit_scale")
                    if not hasattr(model, name)]  # fmt: skip
            if lost:
                raise ConfigError(
                    Fault("modelpool", f"a {type(model).__name__} has no {' and no '.join(lost)}",
                          "a whole model with two towers", "Set auto_class=AutoModel, or use CLIPVisionModelTaskPool.")
                )  # fmt: skip
            known = self._made[task] = (model, ZeroShotClassifier(model, self._texts(model, self.prompts(task), task)))
        return known[1].eval()

    def _texts(self, model: Any, prompts: ClassPrompts, task: str) -> Tensor:
        """Per class the normalised mean of its prompts' normalised embeddings [classes, size]."""
        texts = [text for index in range(len(prompts.classes)) for text in prompts.texts(index)]
        device = next(model.parameters()).device
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), _BATCH):
                tokens = self._encoded(texts[start : start + _BATCH], model).to(device)
                parts.append(F.normalize(embedding(model.get_text_features(**tokens)).float(), dim=-1))
            means = torch.cat(parts).reshape(len(prompts.classes), len(prompts.templates), -1).mean(1)
            found = F.normalize(means, dim=-1)
        if not bool(torch.isfinite(found).all()):
            raise EvaluationError(
                Fault(f"task '{task}'", "text features that are NaN", "numbers", "Look at the merge.")
            )
        return found.clone()

    def _encoded(self, texts: list[str], model: Any) -> Any:
        """Tokens, padded as the model was trained: SigLIP to its whole context, others to the longest."""
        if self._tokenizer is None:
            self._tokenizer = _tokenizer(model_folder(self._processor, self._revision))
        if "siglip" not in model.config.model_type:
            return self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        length = model.config.text_config.max_position_embeddings
        tokens = self._tokenizer(
            texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt",
            return_attention_mask=False,
        )  # fmt: skip
        tokens.pop("token_type_ids", None)
        return tokens


def embedding(output: Any) -> Tensor:
    """The embeddings in what `get_text_features` or `get_image_features` gives."""
    found: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return found


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            Fault(f"taskpool.base_model {folder}", f"no tokenizer ({first})", "the model's own")
        ) from error
