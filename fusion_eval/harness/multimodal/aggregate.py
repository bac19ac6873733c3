"""Aggregations of task folders: their signatures, and the values of any type that they give."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_eval.harness import aggregation
from fusion_eval.harness.aggregation import Aggregation


def arguments(output: Path | str) -> Namespace:
    """What an aggregation that asks for `args` gets: the peer's command line, of which tasks use `output_path`."""
    return Namespace(
        output_path=str(output), output_dir=str(output), log_samples=False, log_samples_suffix="", tasks="",
        model="", model_args="", batch_size=1, limit=None, num_fewshot=None, predict_only=False, verbosity="INFO",
        process_with_media=False, reasoning_tags=None, launcher_args=None, seed=0,
    )  # fmt: skip


def with_arguments(function: Aggregation, args: Namespace) -> Aggregation:
    """The aggregation as a function of the list of values alone.

    A parameter that is called `args` gets the namespace: `(results, args)`, `(results, args, **more)`.
    """
    if not _wants_arguments(function):
        return function

    def aggregate(items: Sequence[Any]) -> Any:
        return function(items, args=args)  # type: ignore[call-arg]

    return aggregate


def _wants_arguments(function: Callable[..., Any]) -> bool:
    try:
        found = inspect.signature(function).parameters.get("args")
    except (TypeError, ValueError):
        return False
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def unsorted_median(items: Sequence[Any]) -> Any:
    """The element in the middle of the list as it is: what the peers call the median."""
    return items[len(items) // 2]


def peer_aggregation(function: Aggregation, compat: bool) -> Aggregation:
    """The peer's own form of a built-in aggregation, with `compat`."""
    return unsorted_median if compat and function is aggregation.median else function


def numbers_of(name: str, value: Any) -> dict[str, float] | None:
    """The numbers of an aggregated value, by name: of a mapping or a tuple one each; None where there are none."""
    value = _plain(value)
    if isinstance(value, (bool, int, float)):
        return {name: float(value)}
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    found: dict[str, float] = {}
    for key, item in items:
        found.update(numbers_of(f"{name}/{key}", item) or {})
    return found or None


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
