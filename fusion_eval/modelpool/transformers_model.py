"""What the pools ask of transformers: a class by name, a config, a weightless model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusion_eval.errors import CheckpointError, ConfigError, Fault, did_you_mean
from fusion_eval.modelpool.hub import missing_hub
from fusion_eval.modelpool.skeletons import weightless


def model_class(name: str, where: str = "modelpool.auto_class") -> Any:
    """The Auto class or model class of transformers that is called `name`.

    Raises:
        ConfigError: there is none.
        MissingDependencyError: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise missing_hub(where) from error
    found = getattr(transformers, name, None)
    if name == "DeepseekForCausalLM" and found is None:
        from fusion_eval.modelpool.deepseek_moe import DeepseekForCausalLM

        return DeepseekForCausalLM
    if not callable(getattr(found, "from_pretrained", None)):
        autos = [known for known in dir(transformers) if known.startswith("Auto")]
        known = [*autos, *(other for other in dir(transformers) if other.endswith("Model"))]
        expected = "AutoModel, AutoModelForCausalLM or another model class of transformers"
        raise ConfigError(Fault(where, f"no class '{name}'", expected, did_you_mean(name, known)))
    return found


def model_config(cls: Any, folder: Path, overrides: Mapping[str, Any] | None = None) -> Any:
    """The config in a folder, as `cls` reads it: of a vision tower also out of a whole CLIP's.

    Raises:
        CheckpointError: it is missing, malformed, of an unknown model type, or of a quantised model.
    """
    from transformers import AutoConfig

    where = folder / "config.json"
    config_class = getattr(cls, "config_class", None) or AutoConfig
    try:
        raw = json.loads(where.read_text(encoding="utf-8"))
        config = config_class.from_pretrained(folder, **dict(overrides or {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        found = "no such file" if not where.is_file() else f"not a config that {config_class.__name__} reads ({first})"
        raise CheckpointError(Fault(str(where), found, "the config.json of a Hugging Face model")) from error
    if raw.get("quantization_config"):
        how = raw["quantization_config"].get("quant_method", "unknown method")
        found, do = f"a quantised model ({how})", "Merge the original, or dequantise it and save it again."
        raise CheckpointError(Fault(str(where), found, "weights in a floating dtype", do))
    return config


def model_type(folder: Path) -> str | None:
    """What the config in a folder says of which kind the model is, or None where it says nothing."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = raw.get("model_type") if isinstance(raw, dict) else None
    return found if isinstance(found, str) else None


def weightless_model(cls: Any, config: Any, dtype: torch.dtype | None = None) -> nn.Module:
    """The model that a config describes, without weights, in evaluation mode.

    Raises:
        ConfigError: the class has no architecture for this config.
    """
    if dtype is not None:
        setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", dtype)
    make = getattr(cls, "from_config", None) or cls._from_config
    try:
        with weightless():
            model: nn.Module = make(config)
    except ValueError as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(Fault("modelpool.auto_class", first, f"a class for a '{config.model_type}'")) from error
    return model.eval()


def generation_config(model: nn.Module, folder: Path) -> None:
    """Give a generating model the generation settings of a folder, as `from_pretrained` does."""
    if (folder / "generation_config.json").is_file() and getattr(model, "generation_config", None) is not None:
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig.from_pretrained(folder)  # type: ignore[assignment]
