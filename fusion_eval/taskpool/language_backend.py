"""The backend that a language model is asked through: transformers in place, or vLLM by way of a folder."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fusion_eval.errors import Fault, did_you_mean
from fusion_eval.harness.engine.protocol import LanguageModel
from fusion_eval.taskpool.language_model import BACKENDS, EngineMaker, checked_config

_VISION_OPTIONS = ("max_new_tokens", "max_pixels")
_ENCODER_OPTIONS = ("max_length", "add_bos_token", "prefix_token_id")


def backend_faults(maker: EngineMaker) -> list[Fault]:
    """What is wrong with the choice of a backend."""
    found = []
    if maker.batch_size != "auto" and not _is_count(maker.batch_size):
        found.append(Fault("taskpool.batch_size", repr(maker.batch_size), "a positive number, or auto"))
    if maker.pass_tokens is not None and not _is_count(maker.pass_tokens):
        found.append(Fault("taskpool.pass_tokens", repr(maker.pass_tokens), "a positive number, or null"))
    if maker.backend not in BACKENDS:
        hint = did_you_mean(maker.backend, BACKENDS)
        found.append(Fault("taskpool.engine", f"'{maker.backend}'", " or ".join(BACKENDS), hint))
    if maker.backend_options and maker.backend != "vllm":
        found.append(Fault("taskpool.engine_options", "are for vllm", f"none with engine={maker.backend}"))
    if maker.backend == "vllm" and maker.server is not None:
        found.append(Fault("taskpool.engine", "is vllm, and a server is named too", "one of the two"))
    elif maker.backend == "vllm" and not _installed("vllm"):
        found.append(Fault("taskpool.engine", "the package 'vllm' is not installed", do="Run: pip install vllm"))
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # imported, but from no file
        return True


@contextmanager
def opened(
    maker: EngineMaker, model: nn.Module, name: str, pool: Any = None, visual: bool = False
) -> Iterator[LanguageModel]:
    """The engine of a model; what it holds beside the model is given back at the end.

    Args:
        maker: what was asked for.
        model: a Hugging Face language model.
        name: for reports.
        pool: the model pool, whose reference folder may hold the tokenizer.
        visual: whether prompts hold pictures.

    Raises:
        ConfigError: the model is none of language, or has no tokenizer.
        MissingDependencyError: the backend is not installed.
    """
    if maker.backend != "vllm" or maker.server is not None:
        yield maker.engine(model, name, pool, visual)
        return
    from fusion_eval.harness.engine.transformers_model import weights_digest
    from fusion_eval.harness.engine.vllm import VllmModel

    own: Any = model
    checked_config(model, name)
    encode = {key: maker.options[key] for key in _ENCODER_OPTIONS if key in maker.options}
    with tempfile.TemporaryDirectory() as folder:  # vLLM reads models from folders
        own.save_pretrained(folder)
        find = maker.processor_of if visual else maker.tokenizer_of
        processor = find(model, name, pool)
        processor.save_pretrained(folder)
        engine: Any = VllmModel(
            folder, name=name, encode={**encode, "compat": maker.compat}, identity=weights_digest(model),
            think_end=maker.options.get("think_end_token"), chat_options=maker.options.get("chat_template_args"),
            **maker.backend_options,
        )  # fmt: skip
        if visual:
            from fusion_eval.harness.engine.vision_vllm import VisionVllmModel

            options = {key: maker.options[key] for key in _VISION_OPTIONS if maker.options.get(key) is not None}
            engine = VisionVllmModel(engine, processor, **options)
        try:
            yield engine
        finally:
            engine.close()
