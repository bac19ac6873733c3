"""What stands beside the weights in a saved model's folder: configs, tokenizer and processor files, a model card."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import nn

from fusion_eval.version import __version__

COPIED: Final = (
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


RECIPE: Final = "recipe.yml"
CARD: Final = "README.md"
_UNKNOWN: Final = "Nothing was measured of it when this was written.\n"
_HUB_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
_BEGIN, _END = "<!-- evaluation -->\n", "<!-- end of evaluation -->\n"


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """How a merge was made.

    Args:
        method: the method, in words.
        recipe: the text that makes the merge again, or None.
        inputs: for each model where it came from (`source`) and the hash of its weights (`fingerprint`).
    """

    method: str
    recipe: str | None = None
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the recipe into a folder."""
        if self.recipe is not None:
            (folder / RECIPE).write_text(self.recipe, encoding="utf-8")

    def describe(self, folder: Path, sources: Mapping[str, str], merge: str) -> None:
        """Write the recipe and a model card into a folder of weights that no library has a class for."""
        (folder / CARD).write_text(model_card(sources, merge, self, library=None), encoding="utf-8")
        self.write(folder)


def write_description(
    folder: Path,
    origin: Path,
    model: nn.Module,
    sources: Mapping[str, str],
    merge: str,
    record: MergeRecord | None = None,
) -> None:
    """Write everything but the weights.

    Args:
        folder: where the weights are.
        origin: the folder of the model that gives tokenizer, processor and generation settings.
        model: the architecture, with its config.
        sources: the merged models, by name.
        merge: what was done, in words.
        record: how the merge was made.
    """
    for pattern in COPIED:
        for file in origin.glob(pattern):
            if file.is_file() and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
    config: Any = model.config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    (folder / CARD).write_text(model_card(sources, merge, record), encoding="utf-8")
    if record is not None:
        record.write(folder)


def model_card(
    sources: Mapping[str, str], merge: str, record: MergeRecord | None = None, library: str | None = "transformers"
) -> str:
    """The model card: which models were merged, by their hashes, how, and what makes the merge again."""
    published = [path for path in dict.fromkeys(sources.values()) if _is_hub_id(path)]
    parents = "base_model:\n" + "".join(f"- {path}\n" for path in published) if published else ""
    loader = "" if library is None else f"library_name: {library}\n"
    inputs = {} if record is None else record.inputs
    rows = "\n".join(f"| {name} | {path} | {_hash(inputs.get(name))} |" for name, path in sources.items())
    how = "" if record is None else f", by {record.method}"
    return f"""---
{loader}tags:
- merge
- fusion_eval
{parents}---

# A merged model

This is {merge}, made with fusion_eval {__version__}{how}.

| role | model | sha256 of its weights |
|---|---|---|
{rows}

## Evaluation

{_BEGIN}{_UNKNOWN}{_END}{_recipe_section(record)}"""


def note_evaluation(folder: Path, text: str) -> None:
    """Put what was measured into the model card of a folder, if it has one of ours."""
    path = folder / CARD
    card = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, begin, rest = card.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if begin and end:
        fresh = path.with_name(f".{CARD}.part")
        fresh.write_text(f"{before}{begin}{text.rstrip()}\n{end}{after}", encoding="utf-8")
        fresh.replace(path)


def _is_hub_id(path: str) -> bool:
    return _HUB_ID.fullmatch(path) is not None and not Path(path).expanduser().exists()


def _hash(entry: Mapping[str, Any] | None) -> str:
    return "not computed" if not entry or "fingerprint" not in entry else f"`{entry['fingerprint'][:16]}`"


def _recipe_section(record: MergeRecord | None) -> str:
    if record is None or record.recipe is None:
        return ""
    text = record.recipe.rstrip()
    return f"\n`fusion_eval method=recipe method.path={RECIPE}` makes it again:\n\n```yaml\n{text}\n```\n"
