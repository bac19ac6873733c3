"""How the configs and vocabularies beside the weights of a pool's models differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fusion_eval.errors import listed
from fusion_eval.merge.checkpoint import Checkpoint

_CONFIG: Final = "config.json"
_NOT_ARCHITECTURE: Final = ("_name_or_path", "_commit_hash", "transformers_version")
_SHOWN: Final = 40

Vocabulary = dict[str, int]


def folder_differences(models: Mapping[str, Checkpoint]) -> list[str]:
    """One sentence per model and kind of difference from the first model that lies in a folder with a config.

    Models that are not in such folders are not compared.
    """
    folders = {name: folder for name, model in models.items() if (folder := folder_of(model)) is not None}
    if len(folders) < 2:
        return []
    (reference, home), *others = folders.items()
    found: list[str] = []
    for name, folder in others:
        for text in (*_config_differences(reference, home, folder), *_vocabulary_differences(reference, home, folder)):
            found.append(f"model '{name}': {text}")
    return found


def folder_of(model: Checkpoint) -> Path | None:
    """The folder that a model's weights lie in, where a config lies beside them."""
    for text in (model.source, model.source.partition(" (")[0]):  # views say in brackets what they change
        place = Path(text)
        folder = place if place.is_dir() else place.parent
        if place.exists() and (folder / _CONFIG).is_file():
            return folder
    return None


def vocabulary_of(folder: Path) -> Vocabulary | None:
    """Token ids by token, added tokens among them, or None where no file that tells them is there."""
    if (folder / "tokenizer.json").is_file():
        stored = _read(folder / "tokenizer.json")
        vocabulary = stored.get("model", {}).get("vocab", {})
        if isinstance(vocabulary, list):  # unigram: (token, score) in the order of ids
            vocabulary = {token: index for index, (token, *_) in enumerate(vocabulary)}
        return {**vocabulary, **{token["content"]: token["id"] for token in stored.get("added_tokens", ())}}
    if (folder / "vocab.json").is_file():
        return dict(_read(folder / "vocab.json"))
    if (folder / "vocab.txt").is_file():
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        return {token: index for index, token in enumerate(lines)}
    return None


def _config_differences(reference: str, home: Path, folder: Path) -> Iterator[str]:
    try:
        known, here = (dict(_flat(_read(place / _CONFIG))) for place in (home, folder))
    except ValueError as error:
        yield f"{_CONFIG} cannot be read ({error})"
        return
    changed = [
        f"{key} is {_shown(known, key)} in '{reference}' and {_shown(here, key)} here"
        for key in dict.fromkeys([*known, *here])
        if known.get(key) != here.get(key)
    ]
    if changed:
        yield f"{len(changed)} values of {_CONFIG} differ: {listed(changed)}"


def _vocabulary_differences(reference: str, home: Path, folder: Path) -> Iterator[str]:
    try:
        known, here = vocabulary_of(home), vocabulary_of(folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"the vocabulary cannot be read ({type(error).__name__}: {error})"
        return
    if known is None or here is None:
        if (known is None) != (here is None):
            owner = f"'{reference}'" if here is None else "this model"
            yield f"only {owner} has a vocabulary beside its weights"
        return
    gone, new = [t for t in known if t not in here], [t for t in here if t not in known]
    moved = [token for token in known if token in here and known[token] != here[token]]
    sizes = f"{len(known):,} tokens in '{reference}', {len(here):,} here"
    if gone or new:
        lists = [f"{len(new):,} only here ({listed(new)})" if new else "", f"{len(gone):,} only there ({listed(gone)})"]
        kept = ", ".join(text for text, tokens in zip(lists, (new, gone), strict=True) if tokens)
        yield f"the vocabularies differ ({sizes}): {kept}"
    if moved:
        yield f"{len(moved):,} tokens have other ids ({listed(moved)}): merging row by row mixes unlike tokens"


def _read(path: Path) -> dict[str, Any]:
    stored = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(stored, dict):
        raise ValueError(f"a {type(stored).__name__} in place of a mapping")
    return stored


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif key not in _NOT_ARCHITECTURE:
            yield f"{prefix}{key}", value


def _shown(config: Mapping[str, Any], key: str) -> str:
    text = json.dumps(config[key]) if key in config else "absent"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
