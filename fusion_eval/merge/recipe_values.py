"""Values in a recipe: parameters with filters and gradients, models, the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fusion_eval.errors import did_you_mean
from fusion_eval.merge.approximation import METHODS, PIECES, SCHEMES, Approximation
from fusion_eval.merge.recipe import Entry, ModelReference, Scalar, Setting, Settings, TokenizerChoice, TokenSource
from fusion_eval.merge.recipe_contract import Contract, Option, is_known
from fusion_eval.merge.recipe_yaml import NUMBER, Item, Source

PLACES: Final = ("dtype", "out_dtype", "base_model", "tokenizer_source", "tokenizer", "chat_template")
"""Keys of a recipe that are often written among parameters by mistake."""


def parameters(source: Source, item: Item | None, method: str, contract: Contract, allowed: Sequence[str]) -> Settings:
    """The settings of a `parameters` mapping.

    Misspelt and misplaced ones are faults; those of other methods only have no effect, as recipes often keep them.
    """
    if item is None or item.value is None:
        return {}
    if not isinstance(item.value, dict):
        source.fault(item, f"parameters is {item.kind()}", "a mapping")
        return {}
    options = {**contract.shared, **contract.own}
    found = {}
    for name, value in item.value.items():
        hint = did_you_mean(name, options)
        if name not in options and is_known(name):
            source.note(value, f"'{name}' has no effect in {method}. {hint}".rstrip())
        elif name not in options:
            takes = f"It takes: {', '.join(options)}." if options else "It takes none."
            takes = "It belongs beside 'parameters', not in it." if name in PLACES else takes
            source.unknown(value, f"{method} has no parameter '{name}'", hint or takes)
        elif name not in allowed:
            source.unknown(value, f"'{name}' at one model", "Move it to the slice or the whole recipe.")
        else:
            entries = _entries(source, value, name, options[name])
            if entries:
                found[name] = Setting(entries, source.where(value.line))
    return found


def _entries(source: Source, item: Item, name: str, option: Option) -> tuple[Entry, ...]:
    """A scalar, a gradient, {value, filter}, or a list of these."""
    if isinstance(item.value, dict):
        return _conditional(source, item, name, option)
    if isinstance(item.value, list) and item.value and isinstance(item.value[0].value, dict):
        return tuple(entry for each in item.value for entry in _conditional(source, each, name, option))
    values = _values(source, item, name, option)
    return (Entry(values),) if values else ()


def _conditional(source: Source, item: Item, name: str, option: Option) -> tuple[Entry, ...]:
    entries = source.keys(item, ("value", "filter"), name)
    if "value" not in entries:
        source.fault(item, f"{name} without 'value'", "{value: ..., filter: ...}")
        return ()
    chosen = entries.get("filter")
    if chosen is not None and chosen.value is not None and not isinstance(chosen.value, str):
        source.fault(chosen, f"filter is {chosen.kind()}", "a part of tensor names")
        return ()
    values = _values(source, entries["value"], name, option)
    return (Entry(values, None if chosen is None else chosen.value),) if values else ()


def _values(source: Source, item: Item, name: str, option: Option) -> tuple[Scalar, ...]:
    items = item.value if isinstance(item.value, list) else [item]
    values = [_flag(each.value) if option.flag else _number(each.value) for each in items]
    found = tuple(value for value in values if value is not None)
    if items and len(found) == len(items):
        return found
    kind = "true or false" if option.flag else "a number"
    source.fault(item, f"{name} is {item.plain()!r}", f"{kind}, a list of such, or {{value: ..., filter: ...}}")
    return ()


def _flag(value: Any) -> Scalar | None:
    """True or false; mergekit itself writes them as 1.0 and 0.0."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return bool(value) if value in (0, 1) else None


def _number(value: Any) -> Scalar | None:
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def reference(source: Source, item: Item | None, what: str) -> ModelReference | None:
    """The model that a text `path[@revision][+lora[@revision]]` or a mapping names, or None."""
    if item is None or item.value is None:
        return None
    if not isinstance(item.value, dict):
        text = source.text(item, what)
        return model_reference(text) if text else None
    entries = source.keys(item, ("model", "lora", "path", "revision", "override_architecture"), what)
    if "path" in entries:
        path, revision = _place(source, item, what)
        return ModelReference(path, revision) if path else None
    path, revision = _place(source, entries["model"], f"{what}.model") if "model" in entries else ("", None)
    if "model" not in entries:
        source.fault(item, f"{what} without 'model'", "a folder or a hub id")
    if not path:
        return None
    if "lora" not in entries:
        return ModelReference(path, revision)
    return ModelReference(path, revision, *_place(source, entries["lora"], f"{what}.lora"))


def _place(source: Source, item: Item, what: str) -> tuple[str, str | None]:
    if not isinstance(item.value, dict):
        text = source.text(item, what)
        return _split_revision(text)
    entries = source.keys(item, ("path", "revision"), what)
    path = source.text(entries["path"], f"{what}.path") if "path" in entries else ""
    if "path" not in entries:
        source.fault(item, f"{what} without 'path'", "a folder or a hub id")
    revision = entries.get("revision")
    return path, None if revision is None or revision.value is None else str(revision.value)


def model_reference(text: str) -> ModelReference:
    """The model that `path[@revision][+lora[@revision]]` names; an existing folder of that name is itself."""
    if Path(text).expanduser().exists() or "+" not in text:
        return ModelReference(*_split_revision(text))
    path, _, adapter = text.partition("+")
    return ModelReference(*_split_revision(path), *_split_revision(adapter))


def _split_revision(text: str) -> tuple[str, str | None]:
    if "@" not in text or Path(text).expanduser().exists():
        return text, None
    path, _, revision = text.rpartition("@")
    return path, revision


def tokenizer_choice(source: Source, document: Item, entries: Mapping[str, Item]) -> TokenizerChoice | None:
    """What `tokenizer` or `tokenizer_source` says, or None."""
    short, long = entries.get("tokenizer_source"), entries.get("tokenizer")
    if short is not None and long is not None:
        source.fault(document, "tokenizer and tokenizer_source together", "one of them")
    if long is None:
        model = reference(source, short, "tokenizer_source")
        if model is not None and model.path.startswith("model:"):  # as mergekit wrote it before its version 0.1
            model = model_reference(str(model).removeprefix("model:"))
        return None if model is None or short is None else TokenizerChoice(model, where=source.where(short.line))
    inner = source.keys(long, ("source", "tokens", "pad_to_multiple_of", "approximate"), "tokenizer")
    chosen = reference(source, inner.get("source"), "tokenizer.source") or ModelReference("union")
    tokens = {}
    if "tokens" in inner and inner["tokens"].value is not None:
        whole = inner["tokens"]
        known = list(whole.value) if isinstance(whole.value, dict) else []
        for token, each in source.keys(whole, known, "tokenizer.tokens").items():
            tokens[token] = _token(source, each, token)
    multiple = _positive(source, inner, "pad_to_multiple_of")
    return TokenizerChoice(chosen, tokens, multiple, source.where(long.line), _approximation(source, inner))


def _approximation(source: Source, inner: Mapping[str, Item]) -> Approximation | None:
    """A number of rows, or a mapping with the options of mergekit-tokensurgeon."""
    item = inner.get("approximate")
    if item is None or item.value is None:
        return None
    if not isinstance(item.value, dict):
        count = _positive(source, inner, "approximate")
        return None if count is None else Approximation(count=count)
    what = "tokenizer.approximate"
    entries = source.keys(item, ("method", "k", "weight_scheme", "cosine_similarity", "subword_method"), what)
    words = {"method": METHODS, "weight_scheme": SCHEMES, "subword_method": PIECES}
    said = {key: source.choice(entries[key], words[key], f"{what}.{key}") for key in words if key in entries}
    cosine = _flag(entries["cosine_similarity"].value) if "cosine_similarity" in entries else False
    if cosine is None:
        source.fault(entries["cosine_similarity"], f"{what}.cosine_similarity", "true or false")
    return Approximation(
        said.get("method", "omp"),
        _positive(source, entries, "k") or 64,
        said.get("weight_scheme", "distance_proportional"),
        bool(cosine),
        said.get("subword_method", "mean"),
    )


def _positive(source: Source, inner: Mapping[str, Item], key: str) -> int | None:
    item = inner.get(key)
    if item is None or item.value is None:
        return None
    if type(item.value) is int and item.value > 0:
        return int(item.value)
    source.fault(item, f"{key} is {item.kind()}", "a positive whole number")
    return None


def _token(source: Source, item: Item, token: str) -> TokenSource:
    what = f"token '{token}'"
    entries = source.keys(item, ("source", "force"), what)
    force = bool(entries["force"].value) if "force" in entries else False
    where = source.where(item.line)
    chosen = entries.get("source")
    if chosen is None or chosen.value is None:
        return TokenSource(force=force, where=where)
    if not isinstance(chosen.value, dict) or "kind" not in chosen.value:
        return TokenSource("model", reference(source, chosen, what), force=force, where=where)
    inner = source.keys(chosen, ("kind", "model", "token", "token_id"), what)
    kind = source.choice(inner["kind"], ("zero", "model_token"), f"{what} kind")
    if kind == "zero":
        return TokenSource("zero", force=force, where=where)
    if ("token" in inner) and ("token_id" in inner):
        source.fault(chosen, f"{what} with token and token_id", "one of them")
    named = inner["token"].value if "token" in inner else None
    number = inner["token_id"].value if "token_id" in inner else None
    model = reference(source, inner.get("model"), what)
    if kind and model is None:
        source.fault(chosen, f"{what} of kind model_token without 'model'", "a model")
    return TokenSource("model", model, named, number, force, where)
