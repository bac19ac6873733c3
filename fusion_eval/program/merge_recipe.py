"""The recipe that a merge of ours is written with: its method and its models, as configuration nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval import __version__
from fusion_eval.report.receipt import redacted

_HEAD = "# fusion_eval method=recipe method.path=recipe.yml makes the weights beside this file again, bit for bit.\n"


def own_recipe(settings: Mapping[str, Any], seed: int, inputs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The text of a recipe in our own spelling, or None where the run was not made from a configuration."""
    import yaml

    if not settings.get("method") or not settings.get("modelpool"):
        return None
    content = {
        "version": __version__,
        "seed": seed,
        "method": redacted(settings["method"]),
        "modelpool": redacted(settings["modelpool"]),
        "inputs": {name: dict(entry) for name, entry in inputs.items()},
    }
    return _HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
