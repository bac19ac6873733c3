"""Pools of Hugging Face models: lazy weights from folders or the hub, models by any Auto class, saving that loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from fusion_eval.errors import CheckpointError, ConfigError, Fault, FusionEvalError, listed
from fusion_eval.log import get_rankzero_logger
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint, TensorSpec
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.lora import adapted
from fusion_eval.merge.sinks import save_checkpoint
from fusion_eval.merge.views import Composed, Part, subset, without_prefix
from fusion_eval.modelpool.fused import fuses_weights, load_fused
from fusion_eval.modelpool.kinship import kinship_notes
from fusion_eval.modelpool.loading import load_into
from fusion_eval.modelpool.model_source import ModelSource, model_source, sources_by_pattern
from fusion_eval.modelpool.names import (
    NameMatch,
    Rename,
    match_names,
    transformers_renaming,
    under_file_names,
    under_model_names,
)
from fusion_eval.modelpool.part import Host, Placed, place_part
from fusion_eval.modelpool.saving import write_description
from fusion_eval.modelpool.skeletons import described, named_dtype, without_head
from fusion_eval.modelpool.source_pool import BASE, SourcePool, located
from fusion_eval.modelpool.transformers_model import (
    generation_config,
    model_class,
    model_config,
    model_type,
    weightless_model,
)
from fusion_eval.task.heads import LinearHead

_logger = get_rankzero_logger(__name__)


class TransformersPool(SourcePool):
    """Models of one transformers class.

    Weights are read from the files when they are asked for, under the names that the installed transformers gives
    them; no model is built for a merge. Class attribute `left_out_silently`: beginnings of names that files of these
    models often have beside the model's own.
    """

    left_out_silently: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        base: Any = None,
        experts: Any = None,
        *,
        pattern: str | None = None,
        auto_class: str = "AutoModel",
        config: Mapping[str, Any] | None = None,
        dtype: str | torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        if pattern is not None:
            experts = sources_by_pattern(experts, pattern, base)
        super().__init__(base, experts, **kwargs)
        self._auto_class, self._overrides = auto_class, dict(config or {})
        self._dtype = named_dtype(dtype)
        self._naming: tuple[dict[str, TensorSpec], Rename | None, nn.Module] | None = None
        self._left_out: dict[str, tuple[str, ...]] = {}
        self._parts: dict[str, Placed] = {}

    def source(self, name: str) -> ModelSource:
        """Where a model of the pool is."""
        base = None if self._base is None else model_source(self._base)
        if name == self.base_name and base is not None:
            return base
        return model_source(self._experts[name], base)

    def open_source(self, source: Any, name: str) -> Checkpoint:
        """The lazy weights in a model's folder, with its adapter added, and in their place where they are a part."""
        place = self.source(name)
        raw = open_checkpoint(place.folder())
        match = self._match(raw)
        if place.into is not None or self._is_part(match, place, name):
            return self._as_part(raw, place, name)
        if not match.stored:
            found = f"none of its {len(raw)} tensors is a weight of {self._auto_class}: {listed(list(raw))}"
            raise CheckpointError(Fault(raw.source, found, do="Choose the auto_class that the weights were made for."))
        self._left_out[name] = match.left_out
        named = under_model_names(raw, match)
        adapter = place.adapter_folder()
        return named if adapter is None else self._adapted(named, adapter)

    def _is_part(self, match: NameMatch, place: ModelSource, name: str) -> bool:
        """Whether a model of another architecture lacks weights that the pool's models have."""
        assert self._naming is not None, "names were matched"
        host, (specs, _, model) = self._host_name(), self._naming
        whole = all(spec in match.stored for spec in specs)
        if name == host or whole or self._head_module is not None or getattr(model, "config", None) is None:
            return False
        return model_type(place.folder(weights=False)) not in (
            None,
            model_type(self.source(host).folder(weights=False)),
        )

    def _as_part(self, raw: Checkpoint, place: ModelSource, name: str) -> Checkpoint:
        """The host with the weights of a smaller model in their place."""
        assert self._naming is not None, "names were matched"
        if self._fuses(raw):
            found = "a part of a model whose weights transformers fuses at loading"
            raise CheckpointError(Fault(raw.source, found, "models of one architecture"))
        host, (specs, _, model), adapter = self._host_name(), self._naming, place.adapter_folder()
        whole = Host(host, self.checkpoint(host), model, specs, self._reference().folder())
        part = raw if adapter is None else adapted(raw, [adapter])
        opened, placed = place_part(part, place.folder(), whole, place.into)
        if name not in self._parts:
            _logger.info("model '%s': %s", name, placed.note)
        self._parts[name] = placed
        return opened

    def _adapted(self, named: Checkpoint, adapter: Path) -> Checkpoint:
        """The base with an adapter, whose own head may be one that the base lacks."""
        assert self._naming is not None, "names were matched"
        whole = named
        if self._head_module is not None:
            whole = _with_blank_head(named, self._naming[0], self._head_module)
        opened = adapted(whole, [adapter])
        _refuse_blank(opened, named, adapter)
        return opened

    def skeleton(self) -> nn.Module:
        """The model that the reference's config describes, without weights."""
        model = self._architecture(self._reference())
        if self._head_module is not None:
            without_head(model, self._head_module)
        return model

    def build(self, checkpoint: Mapping[str, Tensor]) -> nn.Module:
        """A model with these weights, which may have the files' names or the model's."""
        weights = checkpoint if isinstance(checkpoint, Checkpoint) else StateDictCheckpoint(checkpoint)
        match, model = self._match(weights), self.skeleton()
        if self._fuses(weights):
            return load_fused(model, weights)
        return load_into(model, under_model_names(weights, match, keep_rest=True))

    def expert_head(self, task: str, path: str) -> nn.Module:
        """The expert's submodule at `path`, built from the expert's own config."""
        place = self.source(task)
        head = without_head(self._architecture(place), path)
        opened = self.open_source(self._experts[task], task)
        tensors = dict(without_prefix(opened, f"{path}."))
        if isinstance(head, nn.Linear):
            return LinearHead(tensors["weight"], tensors.get("bias"), task)
        return load_into(head, tensors)

    def notes(self) -> list[str]:
        """Experts that do not descend from the base, and tensors that the models have no place for."""
        base, experts = self._opened()
        own = {name: self._own(name, opened) for name, opened in experts.items()}
        found = kinship_notes(None if base is None else self._own(BASE, base), own)
        found += [f"model '{name}': {placed.note}" for name, placed in self._parts.items()]
        for name in self.expert_names:
            rest = [t for t in self._left_out.get(name, ()) if not t.startswith(self.left_out_silently)]
            if rest and self._head_module is None:
                what = f"{len(rest)} tensors are no part of {self._auto_class} and are left out: {listed(rest)}"
                found.append(f"model '{name}': {what}")
        return found

    def _own(self, name: str, opened: Checkpoint) -> Checkpoint:
        """A model without the weights that it has from the host."""
        return subset(opened, self._parts[name].own) if name in self._parts else opened

    def save(self, checkpoint: Checkpoint, folder: Path, **details: Any) -> None:
        """Write a folder that `from_pretrained` loads: weights, configs, tokenizer, processor and a model card.

        Args:
            checkpoint: the merge.
            folder: the target, which appears whole or not at all.
            **details: keywords of `save_checkpoint`, and `record`, how the merge was made.
        """
        record = details.pop("record", None)
        place = self._reference()
        origin = place.folder()
        stored = under_file_names(checkpoint, self._match(open_checkpoint(origin)))
        model = self.skeleton()
        sources = {name: self.source(name).path for name in self.names}

        def finish(partial: Path) -> None:
            write_description(partial, origin, model, sources, checkpoint.source, record)

        save_checkpoint(stored, folder, **{"finish": finish, **details})

    def _match(self, checkpoint: Checkpoint) -> NameMatch:
        if self._naming is None:
            name = self._host_name()
            try:
                model = self._architecture(self.source(name))
            except FusionEvalError as error:
                raise type(error)(*(located(fault, self.where(name)) for fault in error.faults)) from error
            self._naming = described(model), transformers_renaming(model), model
        specs, rename, _ = self._naming
        if self._fuses(checkpoint):
            return NameMatch({name: name for name in checkpoint})
        return match_names(specs, checkpoint, rename)

    def _fuses(self, checkpoint: Checkpoint) -> bool:
        assert self._naming is not None, "names were matched"
        return fuses_weights(self._naming[2], checkpoint)

    def _skeleton_faults(self, reference: Checkpoint) -> list[Fault]:
        return [] if self._fuses(reference) else super()._skeleton_faults(reference)

    def _reference(self) -> ModelSource:
        """The model whose config and files count."""
        return self.source(self._host_name())

    def _host_name(self) -> str:
        """The first model that is whole: the base, else an expert."""
        for name in self.names:
            if self.source(name).into is None:
                return name
        raise ConfigError(Fault("modelpool", "every model has 'into'", "a whole model for them to go into"))

    def _architecture(self, place: ModelSource) -> nn.Module:
        cls = model_class(self._auto_class)
        folder = place.folder(weights=False)
        model = weightless_model(cls, model_config(cls, folder, self._overrides), self._dtype)
        generation_config(model, folder)
        return model


@final
class HuggingFacePool(TransformersPool):
    """Hugging Face models: `base` and `experts` are folders, hub ids, or mappings.

    Args:
        base: a folder or hub id; `{path: owner/model, revision: <commit>}` pins one; None for a pool without base.
        experts: the same by name; `{adapter: owner/lora}` is the base with a LoRA adapter; a language model goes into
            a base that sees, where its place is found or named: `{path: owner/llm, into: language_model}`.
        pattern: where experts given as a list of tasks are: `{task}` is the task, `{model}` the last part of the base's
            name.
        auto_class: the class that runs the weights: AutoModelForCausalLM, AutoModelForSequenceClassification,
            CLIPVisionModel, ... or any other class of transformers.
        config: entries of the config to override, such as `{num_labels: 3}`.
        dtype: the dtype in which models run; by default the config's.
        **kwargs: `models`, `heads`, `head_module`, see `SourcePool`.
    """


def _with_blank_head(checkpoint: Checkpoint, specs: Mapping[str, TensorSpec], path: str) -> Checkpoint:
    """The checkpoint with zeros for weights of the submodule at `path` that it lacks, for an adapter to replace."""
    blank = {name: spec for name, spec in specs.items() if name.startswith(f"{path}.") and name not in checkpoint}
    if not blank:
        return checkpoint
    zeros = StateDictCheckpoint({name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in blank.items()})
    parts = {name: Part(checkpoint, name) for name in checkpoint} | {name: Part(zeros, name) for name in blank}
    return Composed(parts, checkpoint.source, checkpoint.tied)


def _refuse_blank(opened: Checkpoint, before: Checkpoint, adapter: Path) -> None:
    """An adapter that was trained with a head must bring it."""
    blank = [name for name in opened if name not in before and not bool(opened[name].any())]
    if blank:
        do = "Give a base that has them, or an adapter with modules_to_save."
        raise CheckpointError(Fault(str(adapter), f"brings no {listed(blank)}, which the base lacks too", do=do))
