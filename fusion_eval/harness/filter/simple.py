"""Filters that choose among repeats, change case and white space, look up, or call a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.filter.base import EachFilter, Filter, Responses, register_filter


@register_filter("take_first")
class TakeFirst(Filter):
    """The first repeat."""

    def apply(self, resps: Responses, docs: Sequence[Any]) -> list[Any]:
        """One response per request."""
        return [repeats[0] for repeats in resps]


@register_filter("take_first_k")
class TakeFirstK(Filter):
    """The first `k` repeats."""

    def __init__(self, k: int) -> None:
        self.k = k

    def apply(self, resps: Responses, docs: Sequence[Any]) -> list[Any]:
        """At most `k` responses per request."""
        found = list(resps)
        if found and len(found[0]) < self.k:
            raise DataError(
                Fault(
                    "take_first_k",
                    f"k is {self.k}",
                    f"at most {len(found[0])}, the number of repeats",
                    "Raise repeats.",
                )
            )
        return [repeats[: self.k] for repeats in found]


@register_filter("majority_vote")
class MajorityVote(Filter):
    """The most frequent repeat; of equally frequent ones, the first seen."""

    def apply(self, resps: Responses, docs: Sequence[Any]) -> list[Any]:
        """A list of one response per request."""
        return [[Counter(repeats).most_common(1)[0][0]] for repeats in resps]


class Strip(EachFilter):
    """White space at both ends left out."""

    def one(self, response: Any) -> Any:
        """The stripped response."""
        return response.strip()


register_filter("remove_whitespace")(Strip)
register_filter("strip_whitespace")(Strip)


@register_filter("lowercase")
class Lowercase(EachFilter):
    """Lower case."""

    def one(self, response: Any) -> Any:
        """The response in lower case."""
        return response.lower()


@register_filter("uppercase")
class Uppercase(EachFilter):
    """Upper case."""

    def one(self, response: Any) -> Any:
        """The response in upper case."""
        return response.upper()


@register_filter("map")
class MapValues(EachFilter):
    """Each response looked up in a mapping."""

    def __init__(self, mapping_dict: Mapping[str, Any] | None = None, default_value: Any = None) -> None:
        self.mapping = dict(mapping_dict or {})
        self.default = default_value

    def one(self, response: Any) -> Any:
        """The mapped value, or the default."""
        return self.mapping.get(response, self.default)


@register_filter("custom")
class Custom(Filter):
    """A function of all responses and documents."""

    def __init__(self, filter_fn: Callable[..., Any]) -> None:
        self.filter_fn = filter_fn

    def apply(self, resps: Responses, docs: Sequence[Any]) -> Iterable[Any]:
        """What the function returns."""
        return self.filter_fn(resps, docs)  # type: ignore[no-any-return]
