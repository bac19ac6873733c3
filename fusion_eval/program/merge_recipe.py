"""The recipe that a merge of ours is written with: its method and its models, as configuration nodes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from fusion_eval.method.base_method import Method
from fusion_eval.method.pipeline import Pipeline, PipelineMethod
from fusion_eval.method.selection import Tensors
from fusion_eval.report.receipt import redacted
from fusion_eval.version import __version__

_HEAD = "# fusion_eval method=recipe method.path=recipe.yml makes the weights beside this file again, bit for bit.\n"
_MEMORY = (
    "# Made of models in memory: fusion_eval method=recipe method.path=recipe.yml modelpool=... with the same ones.\n"
)


def own_recipe(settings: Mapping[str, Any], seed: int, inputs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The text of a recipe in our own spelling, or None where no configuration describes the method.

    Without a `modelpool` the models were in memory, and the recipe is for whoever has them.
    """
    import yaml

    if not settings.get("method"):
        return None
    pool = settings.get("modelpool")
    content = {
        "version": __version__,
        "seed": seed,
        "method": redacted(settings["method"]),
        **({"modelpool": redacted(pool)} if pool else {}),
        "inputs": {name: dict(entry) for name, entry in inputs.items()},
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return (_HEAD if pool else _MEMORY) + text


def method_node(method: Method) -> dict[str, Any] | None:
    """The configuration node of a method that was built in Python, or None for one that cannot be described so."""
    found: dict[str, Any]
    if isinstance(method, PipelineMethod):
        steps = [_node(step, {name: getattr(step, name) for name in _fields(step)}) for step in method.steps]
        found = {"steps": steps, "origin": method.origin, "last": method.last, "tensors": asdict(method.tensors)}
        return {"_target_": _path(Pipeline), **{key: plain(value) for key, value in found.items()}}
    names = [name for name in inspect.signature(type(method).__init__).parameters if name != "self"]
    state = vars(method)
    found = {name: plain(state[name]) for name in names if name in state}
    return _node(method, found) if len(found) == len(names) else None


def _fields(step: Any) -> list[str]:
    return [field.name for field in fields(step)]


def _node(made: object, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"_target_": _path(type(made)), **values}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def plain(value: Any) -> Any:
    """What YAML can say; paths become text."""
    if isinstance(value, Tensors):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [plain(inner) for inner in value] if isinstance(value, Sequence) else str(value)
