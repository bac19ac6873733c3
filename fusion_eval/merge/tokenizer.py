"""Tokenizers as data: the vocabulary of a folder, unions of vocabularies, and tokens added, all in a fixed order."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fusion_eval.errors import CheckpointError, Fault

FILE: Final = "tokenizer.json"
SETTINGS: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"
_SLOW: Final = ("vocab.json", "vocab.txt", "merges.txt", "*.model", "spiece.model")
_ADDED: Final[Mapping[str, Any]] = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A fast tokenizer's files.

    Args:
        data: the content of tokenizer.json.
        settings: the content of tokenizer_config.json.
        template: the chat template, or None.
        ids: the id of each token.
    """

    data: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.ids.values(), default=-1) + 1

    def special(self, kind: str) -> str | None:
        """The token for `bos`, `eos`, `pad` or `unk`, or None."""
        token = self.settings.get(f"{kind}_token")
        return token.get("content") if isinstance(token, dict) else token


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder, or None where there is none.

    Raises:
        CheckpointError: its files cannot be read.
    """
    if (folder / FILE).is_file():
        data = _read(folder / FILE)
    elif (folder / SETTINGS).is_file() or any(next(folder.glob(pattern), None) for pattern in _SLOW):
        data = _converted(folder)
    else:
        return None
    settings = _read(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    template = settings.get("chat_template")
    if (folder / TEMPLATE).is_file():
        template = (folder / TEMPLATE).read_text(encoding="utf-8")
    return Tokenizer(data, settings, template if isinstance(template, str) else None, _ids(data))


def union(first: Tokenizer, others: Sequence[Tokenizer]) -> Tokenizer:
    """The first tokenizer with the tokens of the others that it lacks.

    New ids follow the first one's, in the order of the tokenizers and of their ids, so the result is the same on every
    run. Texts are split by the first one's merges, and what these leave by the others', or by the probabilities of
    both; ordinary tokens are not matched as a whole, as added tokens would be. Special tokens stay special.
    """
    found = first
    for other in others:
        found = _joined(found, other)
    return found


def with_tokens(tokenizer: Tokenizer, tokens: Iterable[str]) -> Tokenizer:
    """The tokenizer with tokens added that it lacks."""
    new = [token for token in dict.fromkeys(tokens) if token not in tokenizer.ids]
    if not new:
        return tokenizer
    data, settings = copy.deepcopy(dict(tokenizer.data)), copy.deepcopy(dict(tokenizer.settings))
    for number, token in enumerate(new, tokenizer.size):
        _add(data, settings, {**_ADDED, "content": token}, number)
    _settle(data)
    return replace(tokenizer, data=data, settings=settings, ids=_ids(data))


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer's files into a folder; older forms of its vocabulary are not kept, for they would differ."""
    settings = {key: value for key, value in tokenizer.settings.items() if key != "chat_template"}
    _write(folder / FILE, tokenizer.data)
    _write(folder / SETTINGS, settings)
    if tokenizer.template is not None:
        (folder / TEMPLATE).write_text(tokenizer.template, encoding="utf-8")


def _joined(first: Tokenizer, other: Tokenizer) -> Tokenizer:
    new = [token for token in sorted(other.ids, key=lambda token: other.ids[token]) if token not in first.ids]
    data, settings = copy.deepcopy(dict(first.data)), copy.deepcopy(dict(first.settings))
    added = {entry["content"]: entry for entry in other.data.get("added_tokens", ())}
    same_kind = data["model"].get("type") == other.data["model"].get("type")
    _settle(data)
    vocab = data["model"].get("vocab")
    scores = _scores(other.data["model"]) if same_kind and len(vocab or ()) == first.size else {}
    plain, least = same_kind and isinstance(vocab, dict), _least(data["model"])
    for number, token in enumerate(new, first.size):
        special = token in added or not (plain or token in scores)
        if special:
            _add(data, settings, dict(added.get(token, {**_ADDED, "content": token})), number)
        _learn(vocab, token, number, least if special else scores.get(token, 0.0))
    if plain and "merges" in data["model"]:
        known = {_pair(merge) for merge in data["model"]["merges"]}
        theirs = [merge for merge in other.data["model"].get("merges", ()) if _pair(merge) not in known]
        as_text = any(isinstance(merge, str) for merge in data["model"]["merges"][:1])
        data["model"]["merges"] += [" ".join(_pair(merge)) if as_text else list(_pair(merge)) for merge in theirs]
    return replace(first, data=data, settings=settings, ids=_ids(data))


def _scores(model: Mapping[str, Any]) -> dict[str, float]:
    """The logarithms of probabilities of a unigram model's tokens; none of other models."""
    vocab = model.get("vocab")
    return {token: float(score) for token, score in vocab} if isinstance(vocab, list) else {}


def _least(model: Mapping[str, Any]) -> float:
    """A score under all others."""
    return min(_scores(model).values(), default=0.0) - 1


def _learn(vocab: Any, token: str, number: int, score: float) -> None:
    if isinstance(vocab, dict):
        vocab.setdefault(token, number)
    elif isinstance(vocab, list) and len(vocab) == number:
        vocab.append([token, score])


def _settle(data: dict[str, Any]) -> None:
    """Put added tokens into the model's vocabulary too: whoever reads the file gives others an id of its own choice.

    They are still found as a whole first; a unigram model gets them as its least likely ones.
    """
    vocab, least = data["model"].get("vocab"), _least(data["model"])
    known = {token for token, _ in vocab} if isinstance(vocab, list) else set(vocab or ())
    for entry in sorted(data.get("added_tokens", ()), key=lambda entry: entry["id"]):
        if entry["content"] not in known:
            _learn(vocab, entry["content"], entry["id"], least)


def _pair(merge: Any) -> tuple[str, ...]:
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


def _add(data: dict[str, Any], settings: dict[str, Any], entry: dict[str, Any], number: int) -> None:
    data.setdefault("added_tokens", []).append({**entry, "id": number})
    if "added_tokens_decoder" in settings:
        settings["added_tokens_decoder"][str(number)] = {key: value for key, value in entry.items() if key != "id"}


def _ids(data: Mapping[str, Any]) -> dict[str, int]:
    """Token ids, in ascending order."""
    vocab = data.get("model", {}).get("vocab", {})
    ids = dict(vocab) if isinstance(vocab, dict) else {entry[0]: number for number, entry in enumerate(vocab)}
    ids |= {entry["content"]: entry["id"] for entry in data.get("added_tokens", ())}
    return dict(sorted(ids.items(), key=lambda pair: pair[1]))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(Fault(str(path), f"cannot be read ({error})", "a tokenizer's JSON")) from error
    if not isinstance(found, dict):
        raise CheckpointError(Fault(str(path), f"a {type(found).__name__}", "a JSON object"))
    return found


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _converted(folder: Path) -> dict[str, Any]:
    """tokenizer.json of a folder that has only older forms, as transformers converts them."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        do = 'Run: pip install "fusion_eval[huggingface]"'
        raise CheckpointError(Fault(str(folder), f"no {FILE}, and transformers is not installed", do=do)) from error
    try:
        fast = AutoTokenizer.from_pretrained(folder)
        data: dict[str, Any] = json.loads(fast.backend_tokenizer.to_str())
    except (AttributeError, ValueError, OSError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        do = "Save it once as a fast tokenizer."
        raise CheckpointError(Fault(str(folder), f"a tokenizer without {FILE} ({first})", FILE, do)) from error
    return data
