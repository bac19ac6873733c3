"""What stands beside the weights in a saved model's folder: configs, tokenizer and processor files, a model card."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import nn

from fusion_eval import __version__

_COPIED: Final = (
    "generation_config.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "image_processor_config.json",
    "chat_template*",
    "*.py",
)


def write_description(folder: Path, origin: Path, model: nn.Module, sources: Mapping[str, str], merge: str) -> None:
    """Write everything but the weights.

    Args:
        folder: where the weights are.
        origin: the folder of the model that gives tokenizer, processor and generation settings.
        model: the architecture, with its config.
        sources: the merged models, by name.
        merge: what was done, in words.
    """
    for pattern in _COPIED:
        for file in origin.glob(pattern):
            if file.is_file() and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
    config: Any = model.config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    (folder / "README.md").write_text(model_card(sources, merge), encoding="utf-8")


def model_card(sources: Mapping[str, str], merge: str) -> str:
    """The model card: which models were merged, and how."""
    published = [path for path in dict.fromkeys(sources.values()) if not Path(path).expanduser().exists()]
    parents = "base_model:\n" + "".join(f"- {path}\n" for path in published) if published else ""
    rows = "\n".join(f"| {name} | {path} |" for name, path in sources.items())
    return f"""---
library_name: transformers
tags:
- merge
- fusion_eval
{parents}---

# A merged model

This is {merge}, made with fusion_eval {__version__}. Its accuracy is what the report beside the run says, and nothing
is known of it otherwise.

| role | model |
|---|---|
{rows}
"""
