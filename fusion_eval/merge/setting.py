"""Hyperparameters that may differ by tensor, by depth and by expert."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean

Setting = float | Sequence[Any] | Mapping[str, Any]
"""A number; a list, which is a gradient from the first layer to the last; or a mapping from expert names and
regular expressions over tensor names to settings, with `default`, where the first key that fits counts."""

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hyperparameter is asked for.

    Args:
        name: the tensor's name.
        position: its depth from 0 (first layer) to 1 (last layer).
        expert: the expert's name, or "" for what concerns all of them.
        experts: all experts' names.
    """

    name: str
    position: float = 0.0
    expert: str = ""
    experts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a hyperparameter may take; `above` and `below` exclude the bound itself."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        low = value > self.low if self.above else value >= self.low
        high = value < self.high if self.below else value <= self.high
        return math.isfinite(value) and low and high

    def __str__(self) -> str:
        if math.isinf(self.low) and math.isinf(self.high):
            return "a finite number"
        left = "(" if self.above or math.isinf(self.low) else "["
        right = ")" if self.below or math.isinf(self.high) else "]"
        return f"a number in {left}{self.low:g}, {self.high:g}{right}"


def resolve(setting: Setting, place: Place) -> float:
    """The number that holds at a place.

    Raises:
        ConfigError: the setting is a mapping in which nothing fits the place.
    """
    if isinstance(setting, Mapping):
        for key, value in setting.items():
            if _fits(key, place):
                return resolve(value, place)
        who = f" of expert '{place.expert}'" if place.expert else ""
        raise ConfigError(
            Fault("method", f"{dict(setting)} says nothing for tensor '{place.name}'{who}", do="Add a 'default' key.")
        )
    if isinstance(setting, Sequence):
        return _gradient([resolve(value, place) for value in setting], place.position)
    return float(setting)


def _fits(key: str, place: Place) -> bool:
    if key == DEFAULT:
        return True
    if key in place.experts:
        return key == place.expert
    return re.search(key, place.name) is not None


def _gradient(values: Sequence[float], position: float) -> float:
    """Linear interpolation between equally spaced values."""
    x = position * (len(values) - 1)
    low = min(int(x), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    return (1 - (x - low)) * values[low] + (x - low) * values[high]


def setting_faults(where: str, setting: Any, allowed: Range) -> list[Fault]:
    """What is wrong with a setting, whatever the pool: no number, outside the range, no regular expression."""
    if isinstance(setting, Mapping):
        faults = [] if setting else [Fault(where, "an empty mapping", str(allowed))]
        for key, value in setting.items():
            faults += _pattern_faults(f"{where}.{key}", key) + setting_faults(f"{where}.{key}", value, allowed)
        return faults
    if isinstance(setting, Sequence) and not isinstance(setting, str):
        faults = [] if setting else [Fault(where, "an empty list", str(allowed))]
        for index, value in enumerate(setting):
            faults += setting_faults(f"{where}[{index}]", value, allowed)
        return faults
    if isinstance(setting, bool) or not isinstance(setting, int | float):
        return [Fault(where, f"{setting!r} is not a number", str(allowed))]
    return [] if setting in allowed else [Fault(where, f"{setting!r}", str(allowed))]


def _pattern_faults(where: str, pattern: Any) -> list[Fault]:
    try:
        re.compile(str(pattern))
    except re.error as error:
        return [Fault(where, f"not a regular expression ({error})")]
    return []


def key_faults(where: str, setting: Any, names: Sequence[str], experts: Sequence[str]) -> list[Fault]:
    """Keys of a setting that fit no tensor and no expert of a pool, and tensors for which nothing is said."""
    if not isinstance(setting, Mapping):
        return []
    faults = []
    for key in _keys(setting):
        known = key == DEFAULT or key in experts or any(re.search(key, name) for name in names)
        if not known:
            do = did_you_mean(key, [*experts, *names])
            faults.append(Fault(f"{where}.{key}", "fits no expert and no tensor of the pool", do=do))
    if DEFAULT not in setting and not faults:
        open_names = [name for name in names if not any(re.search(key, name) for key in setting if key not in experts)]
        if open_names and not all(expert in setting for expert in experts):
            faults.append(Fault(where, f"says nothing for tensor '{open_names[0]}'", do="Add a 'default' key."))
    return faults


def _keys(setting: Any) -> Iterator[str]:
    if isinstance(setting, Mapping):
        for key, value in setting.items():
            yield key
            yield from _keys(value)
