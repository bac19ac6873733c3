"""The dialect of multimodal task files: Eagle's keys and those of LMMS-Eval, and what each means for a model.

Both trees have keys for what only some models are told. They are found by the model's own name first, then by its
aliases and its family, then under `default`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.spec import TaskSpec

Style = Literal["eagle", "current"]

EAGLE_KEY: Final = "model_specific_prompt_kwargs"
CURRENT_KEY: Final = "lmms_eval_specific_kwargs"
EXTRA_KEYS: Final = frozenset({
    "doc_to_visual", "doc_to_messages", EAGLE_KEY, CURRENT_KEY, "model_specific_generation_kwargs",
    "model_specific_target_kwargs", "full_docs", "process_results_use_image", "cluster_key", "score_key",
    "reasoning_tags", "auto_strip_thinking",
})  # fmt: skip
"""Keys of multimodal task files that language task files do not have."""

_LARGE: Final = 1 << 20
OUTPUT_TYPES: Final = (
    "generate_until", "multiple_choice", "loglikelihood", "generate_until_multi_round", "generate_visual_cot",
    "generate_until_agentic",
)  # fmt: skip
"""Output types of multimodal task files; `generate_visual_cot` needs a model that draws."""

IN_ROUNDS: Final = ("generate_until_multi_round", "generate_until_agentic")
"""Output types of tasks that ask again, knowing what was answered."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """What a model is called.

    Args:
        name: its own name.
        aliases: other names of it and of its family, the nearest first.
    """

    name: str = "default"
    aliases: tuple[str, ...] = ()

    def pick(self, blocks: Mapping[str, Any]) -> str | None:
        """The key among `blocks` that stands for the model, or None."""
        return next((name for name in (self.name, *self.aliases) if name in blocks and name != "default"), None)


def names_of(names: str | Sequence[str] | ModelNames | None) -> ModelNames:
    """Names from whatever was given: the first is the model's own."""
    if isinstance(names, ModelNames):
        return names
    listed = [names] if isinstance(names, str) else [str(name) for name in names or ()]
    return ModelNames(listed[0], tuple(listed[1:])) if listed else ModelNames()


def style_of(spec: TaskSpec, folders: Iterable[Path] = (), known: dict[Path, set[Style]] | None = None) -> Style:
    """Whose meaning a task file has: Eagle's where it (or the tree around it) uses Eagle's key, else LMMS-Eval's.

    Args:
        spec: the task.
        folders: where to look for a file that tells, if the task's own does not.
        known: what was found in folders before.
    """
    if EAGLE_KEY in spec.extra:
        return "eagle"
    if CURRENT_KEY in spec.extra or spec.tag or spec.filter_list != TaskSpec().filter_list:
        return "current"
    seen = {} if known is None else known
    for folder in folders:
        found = seen[folder] if folder in seen else seen.setdefault(folder, _folder_styles(folder))
        if found:
            return "eagle" if found == {"eagle"} else "current"
    return "current"


def _folder_styles(folder: Path) -> set[Style]:
    """Keys that the files of a folder use, templates without an ending included."""
    found: set[Style] = set()
    for path in folder.rglob("*"):
        if path.suffix not in (".yaml", ".yml", "") or not path.is_file() or path.stat().st_size > _LARGE:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if re.search(rf"^{CURRENT_KEY}:", text, re.M):
            return {"current"}
        if re.search(rf"^{EAGLE_KEY}:", text, re.M):
            found.add("eagle")
    return found


def prompt_kwargs(spec: TaskSpec, names: ModelNames, style: Style) -> dict[str, Any] | None:
    """What `doc_to_text` gets besides the document; None where it gets the document alone.

    A model's own block counts, else `default`; in LMMS-Eval's files what `default` says lies over the whole mapping,
    and a mapping without blocks is passed as it is.
    """
    key = EAGLE_KEY if EAGLE_KEY in spec.extra else CURRENT_KEY
    blocks = _mapping(spec, key)
    if blocks is None:
        return None
    own = names.pick(blocks)
    if own is not None:
        return _block(blocks[own], spec, f"{key}.{own}")
    if style == "eagle":
        return None if blocks.get("default") is None else _block(blocks["default"], spec, f"{key}.default")
    shared = blocks.get("default", blocks.get("dataset")) or {}
    return {**blocks, **(_block(shared, spec, f"{key}.default") or {})}


def target_kwargs(spec: TaskSpec, names: ModelNames) -> Any:
    """What `doc_to_target` gets besides the document, a mapping or a plain string; None for nothing."""
    blocks = _mapping(spec, "model_specific_target_kwargs")
    if blocks is None:
        return None
    return blocks[names.pick(blocks) or "default"] if names.pick(blocks) or "default" in blocks else None


def generation_kwargs(spec: TaskSpec, names: ModelNames) -> dict[str, Any]:
    """What is laid over `generation_kwargs` for a model."""
    blocks = _mapping(spec, "model_specific_generation_kwargs")
    if blocks is None:
        return {}
    chosen = blocks.get(names.pick(blocks) or "default")
    return dict(_block(chosen, spec, "model_specific_generation_kwargs") or {})


def _mapping(spec: TaskSpec, key: str) -> dict[str, Any] | None:
    value = spec.extra.get(key)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ConfigError(
            Fault(f"{spec.source or spec.task} ({key})", repr(value), "a mapping from models to settings")
        )
    return dict(value)


def _block(value: Any, spec: TaskSpec, where: str) -> dict[str, Any] | None:
    if value is None or isinstance(value, Mapping):
        return None if value is None else dict(value)
    raise ConfigError(Fault(f"{spec.source or spec.task} ({where})", repr(value), "a mapping"))
