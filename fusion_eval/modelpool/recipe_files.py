"""What stands beside the weights of a recipe's result, all of it known from the donor's files and the recipe."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fusion_eval.merge.recipe_material import Material
from fusion_eval.merge.tokenizer import write_tokenizer
from fusion_eval.modelpool.saving import COPIED, MergeRecord, model_card

_TOKENIZER: Final = ("tokenizer*", "vocab.*", "merges.txt", "added_tokens.json", "*.model", "special_tokens_map.json")


def write_files(
    folder: Path, material: Material, sources: Mapping[str, str], merge: str, record: MergeRecord | None = None
) -> None:
    """Write config, generation config, tokenizer, chat template, other files of the donor, and a model card."""
    left = (*_TOKENIZER, "chat_template*") if material.changed else ()
    if material.origin is not None:
        for pattern in (*COPIED, "special_tokens_map.json"):
            for file in material.origin.glob(pattern):
                unwanted = any(file.match(each) for each in left)
                if file.is_file() and not unwanted and not (folder / file.name).exists():
                    shutil.copyfile(file, folder / file.name)
    if material.config:
        _write(folder / "config.json", material.config)
    if material.generation is not None:
        _write(folder / "generation_config.json", material.generation)
    if material.changed and material.tokenizer is not None:
        write_tokenizer(material.tokenizer, folder)
    (folder / "README.md").write_text(model_card(sources, merge, record), encoding="utf-8")
    if record is not None:
        record.write(folder)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
