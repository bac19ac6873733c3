"""Zero-shot heads: a CLIP's text embeddings of class names, made once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fusion_eval.cache import cache_folder
from fusion_eval.errors import CheckpointError, Fault
from fusion_eval.log import get_rankzero_logger
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.modelpool.class_texts import ClassTexts, class_embeddings, load_tokenizer
from fusion_eval.modelpool.clip_classnames import ClassPrompts
from fusion_eval.modelpool.hub import model_folder
from fusion_eval.modelpool.loading import load_into
from fusion_eval.modelpool.names import match_names, transformers_renaming, under_model_names
from fusion_eval.modelpool.skeletons import described
from fusion_eval.modelpool.transformers_model import model_class, model_config, weightless_model
from fusion_eval.task.heads import ZeroShotHead

log = get_rankzero_logger(__name__)

_TOKENIZER_FILES: Final = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json")


class ZeroShotHeads(ClassTexts):
    """Heads by task from a CLIP's text tower: for each class the mean of its prompts' unit embeddings.

    The embeddings are kept in a folder under a key of the weights, the tokenizer, the names and the prompts.

    Args:
        model: folder or hub id of a whole CLIP.
        revision: its commit, tag or branch.
        classes: class names by task, for data sets that are not among the twenty.
        templates: prompts by task.
        projected: the model's output is in the shared space already (a vision tower with projection).
        cache: the folder; by default `$FUSION_EVAL_CACHE` or the user's cache folder; False keeps nothing.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        *,
        classes: Mapping[str, Sequence[str]] | None = None,
        templates: Mapping[str, Sequence[str]] | None = None,
        projected: bool = False,
        cache: str | Path | bool | None = None,
    ) -> None:
        super().__init__(classes, templates)
        self._model, self._revision, self._projected = model, revision, projected
        self._cache = None if cache is False else Path(cache) if isinstance(cache, str | Path) else cache_folder()
        self._made: dict[str, ZeroShotHead] = {}
        self._key: str | None = None

    def head(self, task: str) -> nn.Module:
        """The head of a task, made once.

        Raises:
            ConfigError: no class names are known for the task.
            CheckpointError: the model is no CLIP, or cannot be read.
        """
        if task not in self._made:
            raw = self._weights()
            projection = None if self._projected else raw["visual_projection.weight"]
            scale = float(raw["logit_scale"].float().exp())
            self._made[task] = ZeroShotHead(self._texts(self.prompts(task), raw), scale, projection, task)
        return self._made[task]

    def _weights(self) -> Checkpoint:
        raw = open_checkpoint(self._folder())
        lost = [name for name in ("visual_projection.weight", "logit_scale") if name not in raw]
        if lost:
            expected = "a whole CLIP, with text tower, projections and logit scale"
            raise CheckpointError(Fault(raw.source, f"no {' and no '.join(lost)}", expected))
        return raw

    def _folder(self) -> Path:
        return model_folder(self._model, self._revision)

    def _texts(self, prompts: ClassPrompts, raw: Checkpoint) -> Tensor:
        """The embeddings (classes, dim), from the cache or made now."""
        if self._cache is None:
            return self._embed(prompts, raw)
        file = self._cache / "zero_shot" / f"{self._digest(prompts, raw)}.safetensors"
        if file.is_file():
            return load_file(file)["texts"]
        texts = self._embed(prompts, raw)
        _keep(texts, file)
        return texts

    def _digest(self, prompts: ClassPrompts, raw: Checkpoint) -> str:
        if self._key is None:
            tokenizer = [(self._folder() / name) for name in _TOKENIZER_FILES]
            texts = [hashlib.sha256(file.read_bytes()).hexdigest() for file in tokenizer if file.is_file()]
            self._key = json.dumps([raw.key() or raw.fingerprint(), texts])
        content = json.dumps([1, self._key, prompts.classes, prompts.templates])
        return hashlib.sha256(content.encode()).hexdigest()

    def _embed(self, prompts: ClassPrompts, raw: Checkpoint) -> Tensor:
        tower, tokenizer = self._text_tower(raw), load_tokenizer(self._folder())
        return class_embeddings(
            prompts,
            lambda texts: tokenizer(texts, padding=True, truncation=True, return_tensors="pt"),
            lambda **tokens: tower(**tokens).text_embeds,
        )

    def _text_tower(self, raw: Checkpoint) -> nn.Module:
        cls = model_class("CLIPTextModelWithProjection", f"the zero-shot heads of '{self._model}'")
        tower = weightless_model(cls, model_config(cls, self._folder()), torch.float32)
        match = match_names(described(tower), raw, transformers_renaming(tower))
        return load_into(tower, under_model_names(raw, match))


def _keep(texts: Tensor, file: Path) -> None:
    """Write the embeddings so that the file appears whole; a cache that cannot be written is no reason to stop."""
    partial = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"texts": texts.contiguous()}, partial)
        os.replace(partial, file)
    except OSError as error:
        log.warning("the zero-shot head is not kept: %s cannot be written (%s)", file, error.strerror)
