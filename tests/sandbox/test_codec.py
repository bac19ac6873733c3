"""Plain data crosses unchanged; objects do not cross; the decoder builds nothing but built-in types."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.sandbox import OpaqueError, decode, encode

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=12,
)


def crossed(value: object) -> object:
    return decode(json.loads(json.dumps(encode(value))))


@given(VALUES)
def test_plain_data_crosses_with_its_types(value: object) -> None:
    found = crossed(value)
    assert found == value
    assert repr(found) == repr(value) or type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        collections.deque([1, (2,)]), collections.Counter("aab"), decimal.Decimal("1.10"), fractions.Fraction(2, 3),
        datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC), datetime.timedelta(1, 2, 3),
        range(1, 10, 3), bytearray(b"x"), {}.keys(), {1: 2}.items(), 2**70, -(2**200), -0.0, {"i": "0x6"},
    ],
)  # fmt: skip
def test_values_of_the_standard_library_cross(value: object) -> None:
    found = crossed(value)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_and_infinities_cross() -> None:
    found = crossed([math.nan, math.inf, -math.inf])
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_iterators_cross_as_iterators() -> None:
    for value in (iter([1, 2]), map(abs, [1, -2]), (item for item in (1, 2)), zip([1], [2], strict=True)):
        found = crossed(value)
        assert next(found) in (1, (1, 2))


def test_numpy_crosses() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = crossed(array)
    assert found.dtype == np.float32
    assert (found == array).all()
    assert crossed(np.int64(3)) == 3
    assert type(crossed(np.float64(0.5))) is float


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_a_subclass_crosses_as_its_built_in_value() -> None:
    found = crossed([Liar(3)])
    assert type(found[0]) is int
    assert found != [4]


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("value", [object(), lambda: 0, Colour.RED, [object()], {1: object()}, test_numpy_crosses])
def test_objects_are_opaque(value: object) -> None:
    with pytest.raises(OpaqueError):
        encode(value)


def test_depth_is_bounded() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(OpaqueError, match="deep"):
        encode(deep)


@pytest.mark.parametrize("data", [{}, {"x": 1}, {"i": "1", "f": "2"}, {"a": ["O", [1], "00"]}])
def test_the_decoder_refuses_what_the_encoder_does_not_write(data: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(data)


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (itertools.chain([1], "a"), [1, "a"]), (itertools.combinations([1, 2, 3], 2), [(1, 2), (1, 3), (2, 3)]),
        (itertools.accumulate([1, 2]), [1, 3]), (itertools.islice(itertools.count(), 2), [0, 1]),
        (iter(b"a"), [97]), (reversed({1: 2, 3: 4}), [3, 1]), (iter(collections.deque([1])), [1]),
    ],
)  # fmt: skip
def test_iterators_of_the_library_cross_as_iterators(value: object, items: list[object]) -> None:
    found = crossed(value)
    assert found != items
    assert list(found) == items


def test_groups_cross_with_their_items() -> None:
    assert [(key, list(group)) for key, group in crossed(itertools.groupby("aab"))] == [("a", ["a", "a"]), ("b", ["b"])]
