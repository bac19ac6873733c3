"""What the parts of a batch are, and how a model is called with its input.

Roles: `input`, `target`, `weight` (one number per item), `mask` (one truth value per item, or per element of the
target), `cluster` (items that belong together), `skip`. Any other name is a keyword of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from fusion_eval.errors import DataError, Fault, did_you_mean, listed
from fusion_eval.task.task import BatchFields

TARGET_KEYS = ("labels", "label", "target", "targets", "fine_label", "y")
_ROLES = ("input", "target", "weight", "mask", "cluster", "skip")


@dataclass(frozen=True, slots=True)
class BatchParts:
    """A batch taken apart; `extras` holds weight, mask and cluster where the batch has them."""

    inputs: Any
    target: Any
    extras: Mapping[str, Any] = field(default_factory=dict)


def split_batch(batch: Any, fields: BatchFields | None, where: str) -> BatchParts:
    """The parts of a pair, of a dictionary with a label under a usual name, or of a batch whose `fields` are given.

    Raises:
        DataError: the batch has another layout than the fields, or needs fields.
    """
    if isinstance(batch, list | tuple):
        return _from_sequence(batch, fields, where)
    if isinstance(batch, Mapping) or (hasattr(batch, "keys") and hasattr(batch, "__getitem__")):
        return _from_mapping(batch, fields, where)
    raise DataError(Fault(where, f"a batch that is a {type(batch).__name__}", "a pair, a tuple or a dictionary"))


def _from_sequence(batch: Sequence[Any], fields: BatchFields | None, where: str) -> BatchParts:
    if fields is None and len(batch) == 2:
        return BatchParts(batch[0], batch[1])
    if fields is None:
        raise DataError(
            Fault(
                where,
                f"a batch of {len(batch)} parts",
                "a pair (input, target)",
                'Name the parts: fields=["input", "target", "weight"], or "mask", "cluster", "skip", or a keyword of '
                "the model.",
            )
        )
    if isinstance(fields, Mapping) or len(fields) != len(batch):
        raise DataError(Fault(where, f"a batch of {len(batch)} parts", f"fields that name them, not {fields!r}"))
    return _gathered(zip(fields, batch, strict=True), where)


def _from_mapping(batch: Any, fields: BatchFields | None, where: str) -> BatchParts:
    if fields is None:
        key = target_key(batch, where)
        named = {name: batch[name] for name in batch if name != key}
        return BatchParts(named, batch[key])
    if not isinstance(fields, Mapping):
        fields = {name: name for name in fields}
    missing = [key for key in fields if key not in batch]
    if missing:
        raise DataError(Fault(where, f"no {listed(missing)} among {listed(list(batch))}", "the keys that fields name"))
    return _gathered(((fields[key], batch[key]) for key in batch if key in fields), where)


class NamedInputs(dict[str, Any]):
    """Inputs that `fields` name: the model must take all of them."""


def _gathered(parts: Any, where: str) -> BatchParts:
    roles: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    for role, value in parts:
        if role != "skip" and (role in roles or role in keywords):
            raise DataError(Fault(f"{where}, fields", f"'{role}' twice", "every role once"))
        (roles if role in _ROLES else keywords)[role] = value
    if "target" not in roles or ("input" not in roles and not keywords):
        raise DataError(Fault(f"{where}, fields", f"{listed([*roles, *keywords])}", "an input and a target"))
    extras = {role: value for role, value in roles.items() if role not in ("input", "target", "skip")}
    if not keywords:
        return BatchParts(roles["input"], roles["target"], extras)
    given = {"input": roles["input"]} if "input" in roles else {}
    return BatchParts(NamedInputs({**given, **keywords}), roles["target"], extras)


def target_key(row: Any, where: str) -> str:
    """The name under which a row or batch holds its label.

    Raises:
        DataError: none of the usual names is there.
    """
    for key in TARGET_KEYS:
        if key in row:
            return key
    raise DataError(
        Fault(
            where,
            f"no label among {listed(list(row))}",
            f"one of {', '.join(TARGET_KEYS)}",
            'Rename the label column, or name the parts: fields={"image": "input", "class": "target"}.',
        )
    )


def as_lists(items: list[Any]) -> Any:
    """A batch of items whose parts have different shapes: one list per part, or per key."""
    if isinstance(items[0], Mapping):
        return {key: [item[key] for item in items] for key in items[0]}
    return tuple(list(part) for part in zip(*items, strict=True))


def call_model(model: nn.Module, inputs: Any, where: str = "the model's input") -> Any:
    """The model's output for a tensor, or for a dictionary of keyword inputs.

    Of a dictionary, the keys that `forward` names are passed; a single other entry is passed by position.

    Raises:
        DataError: no entry fits the model.
    """
    if isinstance(inputs, Tensor) or not isinstance(inputs, Mapping):
        return model(inputs)
    named, takes_more = _forward_names(type(model).forward)
    takes_any = takes_more and (not named or isinstance(inputs, NamedInputs))
    if isinstance(inputs, NamedInputs) and not takes_any:
        _check_taken(inputs, named, type(model).__name__)
    if "input" in inputs and "input" not in named:
        rest = {key: value for key, value in inputs.items() if key != "input"}
        return model(inputs["input"], **rest)
    chosen = {key: value for key, value in inputs.items() if key in named or takes_any}
    if chosen:
        return model(**chosen)
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    if len(tensors) == 1:
        return model(tensors[0])
    raise DataError(
        Fault(
            where,
            f"a batch with the entries {listed(list(inputs))}",
            f"the arguments of {type(model).__name__}.forward: {listed(sorted(named))}",
        )
    )


def _check_taken(inputs: NamedInputs, named: frozenset[str], model: str) -> None:
    """Refuse a name that is neither a role nor a keyword of the model, such as a misspelt role."""
    for name in inputs:
        if name != "input" and name not in named:
            choices = [*_ROLES, *sorted(named)]
            found = f"'{name}', which is no role and no argument of {model}.forward"
            raise DataError(Fault("fields", found, f"one of {listed(choices, 12)}", did_you_mean(name, choices)))


@lru_cache(maxsize=64)
def _forward_names(forward: Any) -> tuple[frozenset[str], bool]:
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = frozenset(p.name for p in parameters if p.kind in kinds)
    return named, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
