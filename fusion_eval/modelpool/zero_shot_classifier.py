"""Zero-shot classifiers of whole models with two towers (CLIP, SigLIP and their like), by their own text tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, EvaluationError, Fault
from fusion_eval.modelpool.class_texts import ClassTexts, Encode, class_embeddings, encoding, load_tokenizer
from fusion_eval.modelpool.hub import model_folder


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


class ZeroShotClassifiers(ClassTexts):
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
        super().__init__(classes, templates)
        self._processor, self._revision = processor, revision
        self._tokenizer: Any = None
        self._encodings: WeakKeyDictionary[nn.Module, Encode] = WeakKeyDictionary()
        self._made: dict[str, tuple[nn.Module, ZeroShotClassifier]] = {}

    def classifier(self, model: nn.Module, task: str) -> ZeroShotClassifier:
        """A model as the classifier of a task.

        Raises:
            ConfigError: a model without a text tower.
            CheckpointError: there is no tokenizer.
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
            known = self._made[task] = (model, ZeroShotClassifier(model, self._texts(model, task)))
        return known[1].eval()

    def _texts(self, model: Any, task: str) -> Tensor:
        """The embeddings of a task's classes [classes, size]."""
        device = next(model.parameters()).device

        def embed(**tokens: Tensor) -> Tensor:
            return embedding(model.get_text_features(**{name: value.to(device) for name, value in tokens.items()}))

        if model not in self._encodings:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(model_folder(self._processor, self._revision))
            context = model.config.get_text_config().max_position_embeddings
            self._encodings[model] = encoding(self._tokenizer, context, embed)
        found = class_embeddings(self.prompts(task), self._encodings[model], embed)
        if not bool(torch.isfinite(found).all()):
            raise EvaluationError(
                Fault(f"task '{task}'", "text features that are NaN", "numbers", "Look at the merge.")
            )
        return found


def embedding(output: Any) -> Tensor:
    """The embeddings in what `get_text_features` or `get_image_features` gives."""
    found: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return found
