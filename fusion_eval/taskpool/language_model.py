"""From a module to an engine: its tokenizer, its rules for tokens, the device it stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.engine.causal import ScorerOptions
from fusion_eval.harness.engine.encoder import Encoder, model_length
from fusion_eval.harness.engine.protocol import LanguageModel
from fusion_eval.harness.engine.transformers_model import TransformersModel


@dataclass(slots=True)
class EngineMaker:
    """Makes engines, and keeps the encodings of models that share a tokenizer.

    Args:
        tokenizer: a folder, a hub name or an object; None to find the one of the model.
        batch_size: prompts generated together, or "auto".
        pass_tokens: tokens of one forward pass when scoring; None for a value that suits the device.
        options: `max_length`, `add_bos_token`, `prefix_token_id`, `think_end_token`, `chat_template_args`.
        compat: repeat the peer's known mistakes.
        server: keywords of `fusion_eval.harness.engine.http.Server`; its model is asked, whatever model is at hand.
    """

    tokenizer: Any = None
    batch_size: int | str = "auto"
    pass_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    compat: bool = False
    server: Mapping[str, Any] | None = None
    _encoders: dict[str, Encoder] = field(default_factory=dict)

    def engine(self, model: nn.Module, name: str, pool: Any = None) -> LanguageModel:
        """The engine of a model.

        Args:
            model: a Hugging Face language model.
            name: for reports.
            pool: the model pool, whose reference folder may hold the tokenizer.
        """
        if self.server is not None:
            return self._served()
        config: Any = getattr(model, "config", None)
        if config is None or not hasattr(model, "forward"):
            found = f"model '{name}' is a {type(model).__name__}"
            raise ConfigError(
                Fault("modelpool", found, "a language model of transformers", "Set auto_class=AutoModelForCausalLM.")
            )
        tokenizer = self._tokenizer(model, name, pool)
        limit = self.options.get("max_length") or model_length(config, tokenizer)
        encoder = Encoder(
            tokenizer, limit, add_bos_token=self.options.get("add_bos_token"),
            prefix_token_id=self.options.get("prefix_token_id"), causal=not config.is_encoder_decoder,
            compat=self.compat,
        )  # fmt: skip
        encoder = self._encoders.setdefault(encoder.key, encoder)
        kind: Any = TransformersModel
        if config.is_encoder_decoder:
            from fusion_eval.harness.engine.seq2seq import Seq2SeqModel

            kind = Seq2SeqModel
        engine: LanguageModel = kind(
            model, encoder.tokenizer, name=name, batch_size=self.batch_size, encoder=encoder,
            options=ScorerOptions(self.pass_tokens), think_end=self.options.get("think_end_token"),
            chat_options=self.options.get("chat_template_args"),
        )  # fmt: skip
        return engine

    def _served(self) -> LanguageModel:
        from fusion_eval.harness.engine.http import HttpModel, Server

        assert self.server is not None
        encoder = None
        if self.tokenizer is not None:
            tokenizer = self._tokenizer(nn.Identity(), str(self.server.get("model")), None)
            limit = self.options.get("max_length") or model_length(None, tokenizer)
            encoder = Encoder(tokenizer, limit, compat=self.compat)
        return HttpModel(Server(**self.server), encoder, think_end=self.options.get("think_end_token"))

    def _tokenizer(self, model: nn.Module, name: str, pool: Any) -> Any:
        from transformers import AutoTokenizer

        if self.tokenizer is not None and not isinstance(self.tokenizer, (str, Path)):
            return self.tokenizer
        places = [self.tokenizer] if self.tokenizer else [*_folders_of(model), *_folders_of_pool(pool)]
        tried = []
        for place in places:
            try:
                return AutoTokenizer.from_pretrained(str(place))
            except (OSError, ValueError) as error:
                tried.append(f"{place} ({str(error).splitlines()[0][:80]})")
        where = "; ".join(tried) or "no folder is known"
        raise ConfigError(
            Fault("taskpool.tokenizer", f"model '{name}' has no tokenizer: {where}", "a folder with a tokenizer",
                  "Set taskpool.tokenizer.")
        )  # fmt: skip


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
