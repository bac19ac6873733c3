"""From a module to an engine: its tokenizer, its rules for tokens, the device it stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.errors import ConfigError, Fault, MissingDependencyError
from fusion_eval.harness.engine.causal import ScorerOptions
from fusion_eval.harness.engine.encoder import Encoder, model_length
from fusion_eval.harness.engine.model_traits import require_causal
from fusion_eval.harness.engine.protocol import LanguageModel
from fusion_eval.harness.engine.transformers_model import TransformersModel

BACKENDS = ("transformers", "vllm")


@dataclass(slots=True)
class EngineMaker:
    """Makes engines, and keeps the encodings of models that share a tokenizer.

    Args:
        tokenizer: a folder, a hub name or an object (for models that see, the processor); None to find the model's own.
        batch_size: prompts generated together, or "auto".
        pass_tokens: tokens of one forward pass when scoring; None for a value that suits the device.
        options: `max_length`, `add_bos_token`, `prefix_token_id`, `think_end_token`, `chat_template_args`; for models
            that see also the fields of `fusion_eval.harness.engine.vision.VisionOptions`.
        compat: repeat the peer's known mistakes.
        server: keywords of `fusion_eval.harness.engine.http.Server`; its model is asked, whatever model is at hand.
        backend: "transformers" or "vllm".
        backend_options: keywords of `vllm.LLM`.
    """

    tokenizer: Any = None
    batch_size: int | str = "auto"
    pass_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    compat: bool = False
    server: Mapping[str, Any] | None = None
    backend: str = "transformers"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    _encoders: dict[str, Encoder] = field(default_factory=dict)

    def engine(self, model: nn.Module, name: str, pool: Any = None, visual: bool = False) -> LanguageModel:
        """The engine of a model.

        Args:
            model: a Hugging Face language model.
            name: for reports.
            pool: the model pool, whose reference folder may hold the tokenizer.
            visual: whether prompts hold pictures.
        """
        if self.server is not None:
            return self._served()
        config = checked_config(model, name)
        if visual:
            return self._visual(model, name, pool)
        tokenizer = self.tokenizer_of(model, name, pool)
        encoder = self._encoder(config, tokenizer)
        kind: Any = TransformersModel
        if config.is_encoder_decoder:
            from fusion_eval.harness.engine.seq2seq import Seq2SeqModel

            kind = Seq2SeqModel
        engine: LanguageModel = kind(
            model, encoder.tokenizer, name=name, batch_size=self.batch_size, encoder=encoder,
            options=ScorerOptions(self.pass_tokens), think_end=self.options.get("think_end_token"),
            chat_options=self.options.get("chat_template_args"),
        )  # fmt: skip
        if not config.is_encoder_decoder:
            require_causal(model, name)
        return engine

    def _encoder(self, config: Any, tokenizer: Any) -> Encoder:
        """Rules for token ids, shared by models whose tokenizers are equal."""
        limit = self.options.get("max_length") or model_length(config, tokenizer)
        encoder = Encoder(
            tokenizer, limit, add_bos_token=self.options.get("add_bos_token"),
            prefix_token_id=self.options.get("prefix_token_id"), causal=not config.is_encoder_decoder,
            compat=self.compat,
        )  # fmt: skip
        return self._encoders.setdefault(encoder.key, encoder)

    def _visual(self, model: nn.Module, name: str, pool: Any) -> LanguageModel:
        from fusion_eval.harness.engine.vision import VisionLanguageModel, VisionOptions

        config: Any = model.config
        if config.is_encoder_decoder or getattr(getattr(config, "text_config", None), "is_encoder_decoder", False):
            raise ConfigError(
                Fault("modelpool", f"model '{name}' is a {type(model).__name__}, an encoder with a decoder",
                      "a decoder with a vision tower",
                      "Set auto_class=AutoModelForImageTextToText, or choose a model that writes by a decoder alone.")
            )  # fmt: skip
        processor = self.processor_of(model, name, pool)
        known = {field.name for field in fields(VisionOptions)} - {"scorer"}
        given = {key: value for key, value in self.options.items() if key in known and value is not None}
        return VisionLanguageModel(
            model, processor, name=name, batch_size=self.batch_size,
            encoder=self._encoder(config, processor.tokenizer), think_end=self.options.get("think_end_token"),
            chat_options=self.options.get("chat_template_args"),
            options=VisionOptions(**given, scorer=ScorerOptions(self.pass_tokens)),
        )  # fmt: skip

    def _served(self) -> LanguageModel:
        from fusion_eval.harness.engine.http import HttpModel
        from fusion_eval.harness.engine.server import Server

        assert self.server is not None
        encoder = None
        if self.tokenizer is not None:
            tokenizer = self.tokenizer_of(nn.Identity(), str(self.server.get("model")), None)
            limit = self.options.get("max_length") or model_length(None, tokenizer)
            encoder = Encoder(tokenizer, limit, compat=self.compat)
        return HttpModel(Server(**self.server), encoder, think_end=self.options.get("think_end_token"))

    def tokenizer_of(self, model: nn.Module, name: str, pool: Any) -> Any:
        """The tokenizer that was given, or the model's own.

        Raises:
            ConfigError: there is none.
        """
        from transformers import AutoTokenizer

        return self._found(AutoTokenizer, "tokenizer", model, name, pool)

    def processor_of(self, model: nn.Module, name: str, pool: Any) -> Any:
        """The processor of pictures and text that was given, or the model's own.

        Raises:
            ConfigError: there is none.
        """
        from transformers import AutoProcessor

        processor = self._found(AutoProcessor, "processor", model, name, pool)
        if getattr(processor, "image_processor", None) is None or getattr(processor, "tokenizer", None) is None:
            raise ConfigError(
                Fault("taskpool.tokenizer", f"model '{name}' comes with a {type(processor).__name__}",
                      "a processor of pictures and text (AutoProcessor)", "Use a model that sees, or set it.")
            )  # fmt: skip
        return processor

    def _found(self, auto: Any, what: str, model: nn.Module, name: str, pool: Any) -> Any:
        """The tokenizer or processor that was given, or the one in the folder of the model or of its pool.

        Raises:
            ConfigError: there is none.
            MissingDependencyError: it is made by a package that is not installed.
        """
        if self.tokenizer is not None and not isinstance(self.tokenizer, (str, Path)):
            return self.tokenizer
        places = [self.tokenizer] if self.tokenizer else [*_folders_of(model), *_folders_of_pool(pool)]
        tried = []
        for place in places:
            try:
                return auto.from_pretrained(str(place))
            except ImportError as error:
                needed = " ".join(str(error).split())
                raise MissingDependencyError(
                    Fault(
                        f"the {what} of model '{name}' in {place}", needed, "the package that it names", "Install it."
                    )
                ) from error
            except (OSError, ValueError) as error:
                tried.append(f"{place} ({str(error).splitlines()[0][:80]})")
        where = "; ".join(tried) or "no folder is known"
        raise ConfigError(
            Fault("taskpool.tokenizer", f"model '{name}' has no {what}: {where}", f"a folder with a {what}",
                  "Set taskpool.tokenizer.")
        )  # fmt: skip


def checked_config(model: nn.Module, name: str) -> Any:
    """The configuration of a model of transformers.

    Raises:
        ConfigError: it is none.
    """
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(model, "forward"):
        found = f"model '{name}' is a {type(model).__name__}"
        raise ConfigError(
            Fault("modelpool", found, "a language model of transformers", "Set auto_class=AutoModelForCausalLM.")
        )
    return config


def sees(model: Any) -> bool:
    """Whether a model takes pictures besides text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def _folders_of(model: nn.Module) -> list[str]:
    config: Any = getattr(model, "config", None)
    found = [getattr(model, "name_or_path", None), getattr(config, "_name_or_path", None)]
    return list(dict.fromkeys(str(place) for place in found if place))


def _folders_of_pool(pool: Any) -> list[str]:
    """Folders of the pool's models, the base first."""
    source = getattr(pool, "source", None)
    if source is None:
        return []
    return [str(source(name).folder()) for name in pool.names]
