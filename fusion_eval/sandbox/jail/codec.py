"""Python values as plain data and back: exact built-in types, and what the standard library and numpy build of them.

An object of the candidate's own classes never crosses: a subclass of a built-in type crosses as its built-in value
(read by the base type's own methods), and everything else is Opaque. The decoder builds built-in types only.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import itertools
import math
import re
import types
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

MAX_DEPTH = 200
MAX_ITEMS = 8_000_000
_SAFE_INT = 2**63
_LEAVES = frozenset({str, bool, int, float, type(None)})


class OpaqueError(Exception):
    """A value that is not plain data."""


class TooLargeError(OpaqueError):
    """Plain data that is nested too deeply or holds too many items."""


def encode(value: object, depth: int = 0) -> Any:
    """The JSON form of a value; raises OpaqueError with the type's name."""
    if depth > MAX_DEPTH:
        raise TooLargeError("nested too deeply")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    exact = _EXACT.get(kind)
    if exact is not None:
        return exact(value, depth)
    if kind.__module__ == "numpy":
        return _encode_numpy(value, depth)
    for base in (int, float, str, list, tuple, dict, set, frozenset, complex, bytes):
        if issubclass(kind, base):
            return _EXACT_BASE[base](value, depth)
    raise OpaqueError(f"{kind.__module__}.{kind.__qualname__}"[:200])


def _items(values: Iterable[Any], depth: int) -> list[Any]:
    found = list(islice(values, MAX_ITEMS + 1))
    if len(found) > MAX_ITEMS:
        raise TooLargeError(f"more than {MAX_ITEMS} items")
    if _is_plain(found):
        return found
    return [encode(item, depth + 1) for item in found]


def _is_plain(items: list[Any]) -> bool:
    """Whether JSON keeps every item as it is, decided without a Python step per item."""
    kinds = set(map(type, items))
    if kinds <= {str, bool, type(None)}:
        return True
    if kinds == {int}:
        return bool(max(items) < _SAFE_INT and min(items) > -_SAFE_INT)
    return bool(kinds == {float} and all(map(math.isfinite, items)))


def _pairs(values: Any, depth: int) -> list[Any]:
    return [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in values]


def _encode_int(value: Any, depth: int) -> Any:
    number = int.__int__(value)
    return number if -_SAFE_INT < number < _SAFE_INT else {"i": hex(number)}


def _encode_float(value: Any, depth: int) -> Any:
    number = float.__float__(value)
    return number if math.isfinite(number) else {"f": float.hex(number)}


_EXACT_BASE: dict[type, Callable[[Any, int], Any]] = {
    int: _encode_int,
    float: _encode_float,
    str: lambda value, depth: str.__str__(value),
    list: lambda value, depth: _items(list.__iter__(value), depth),
    tuple: lambda value, depth: {"t": _items(tuple.__iter__(value), depth)},
    dict: lambda value, depth: {"d": _pairs(dict.items(value), depth)},
    set: lambda value, depth: {"s": _items(set.__iter__(value), depth)},
    frozenset: lambda value, depth: {"z": _items(frozenset.__iter__(value), depth)},
    complex: lambda value, depth: {"c": [float.hex(complex.__complex__(value).real), float.hex(value.imag)]},
    bytes: lambda value, depth: {"b": bytes.__bytes__(value).hex()},
}


def _iterator(value: Any, depth: int) -> Any:
    return {"g": _items(value, depth)}


def _clock(value: Any, depth: int) -> Any:
    return {type(value).__name__: value.isoformat()}


_EXACT: dict[type, Callable[[Any, int], Any]] = {
    **_EXACT_BASE,
    bytearray: lambda value, depth: {"y": bytes(value).hex()},
    range: lambda value, depth: {"r": [encode(bound) for bound in (value.start, value.stop, value.step)]},
    slice: lambda value, depth: {"l": [encode(bound) for bound in (value.start, value.stop, value.step)]},
    collections.deque: lambda value, depth: {"q": _items(value, depth)},
    collections.Counter: lambda value, depth: {"n": _pairs(value.items(), depth)},
    type({}.keys()): lambda value, depth: {"dk": _items(value, depth)},
    type({}.values()): lambda value, depth: {"dv": _items(value, depth)},
    type({}.items()): lambda value, depth: {"di": _items(value, depth)},
    decimal.Decimal: lambda value, depth: {"D": str(value)},
    fractions.Fraction: lambda value, depth: {"F": [encode(value.numerator), encode(value.denominator)]},
    datetime.datetime: _clock,
    datetime.date: _clock,
    datetime.time: _clock,
    datetime.timedelta: lambda value, depth: {"timedelta": [value.days, value.seconds, value.microseconds]},
    **dict.fromkeys(
        (
            types.GeneratorType,
            map,
            filter,
            zip,
            enumerate,
            reversed,
            type(iter([])),
            type(iter(())),
            type(iter("")),
            type(iter("é")),
            type(iter({})),
            type(iter({}.values())),
            type(iter({}.items())),
            type(iter(set())),
            type(iter(range(0))),
            type(reversed([])),
            type(reversed({})),
            type(reversed(range(0))),
            type(iter(b"")),
            type(iter(collections.deque())),
            *(kind for kind in vars(itertools).values() if isinstance(kind, type) and kind is not itertools.groupby),
        ),
        _iterator,
    ),
    itertools.groupby: lambda value, depth: _iterator(((key, iter(list(group))) for key, group in value), depth),
}


def _encode_numpy(value: Any, depth: int) -> Any:
    array = value if type(value).__name__ == "ndarray" else None
    if array is not None and array.dtype.kind in "biufc":
        return {"a": [array.dtype.str, list(array.shape), array.tobytes().hex()]}
    if not callable(getattr(value, "tolist", None)):
        raise OpaqueError(f"numpy.{type(value).__qualname__}")
    return encode(value.tolist(), depth + 1)


def decode(data: Any) -> Any:
    """The value of its JSON form; raises ValueError for anything that `encode` does not write."""
    if type(data) is list:
        return list(data) if _LEAVES.issuperset(map(type, data)) else [decode(item) for item in data]
    if type(data) is not dict:
        return data
    if len(data) != 1:
        raise ValueError("not an encoded value")
    ((tag, body),) = data.items()
    build = _BUILD.get(tag)
    if build is None:
        raise ValueError(f"unknown tag {tag[:20]!r}")
    return build(body)


def _mapping(body: Any) -> dict[Any, Any]:
    return {decode(key): decode(item) for key, item in body}


def _array(body: Any) -> Any:
    import numpy

    kind, shape, data = body
    if not re.fullmatch(r"[<>|=]?[biufc]\d{1,2}", kind):
        raise ValueError(f"array of {kind[:20]!r}")
    return numpy.frombuffer(bytes.fromhex(data), dtype=kind).reshape(shape).copy()


def _dict_view(body: Any) -> dict[int, Any]:
    return dict(enumerate(decode(body)))


_BUILD: dict[str, Callable[[Any], Any]] = {
    "i": lambda body: int(body, 16),
    "f": float.fromhex,
    "t": lambda body: tuple(decode(item) for item in body),
    "d": _mapping,
    "s": lambda body: {decode(item) for item in body},
    "z": lambda body: frozenset(decode(item) for item in body),
    "c": lambda body: complex(float.fromhex(body[0]), float.fromhex(body[1])),
    "b": bytes.fromhex,
    "y": bytearray.fromhex,
    "r": lambda body: range(*decode(body)),
    "l": lambda body: slice(*decode(body)),
    "q": lambda body: collections.deque(decode(body)),
    "n": lambda body: collections.Counter(_mapping(body)),
    "g": lambda body: iter(decode(body)),
    "dk": lambda body: dict.fromkeys(decode(body)).keys(),
    "dv": lambda body: _dict_view(body).values(),
    "di": lambda body: dict(decode(body)).items(),
    "D": decimal.Decimal,
    "F": lambda body: fractions.Fraction(decode(body[0]), decode(body[1])),
    "a": _array,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda body: datetime.timedelta(days=body[0], seconds=body[1], microseconds=body[2]),
}
