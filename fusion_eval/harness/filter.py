"""Filters: what happens to the responses of all requests before they are scored."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fusion_eval.errors import ConfigError, DataError, Fault, FusionEvalError, did_you_mean
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import DEFAULT_PIPELINE, PipelineSpec

Responses = Iterable[Any]


class Filter(ABC):
    """One step of a pipeline. It sees the responses of all requests: a list over requests of lists over repeats."""

    elementwise: ClassVar[bool] = False

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)

    @abstractmethod
    def apply(self, resps: Responses, docs: Sequence[Any]) -> Iterable[Any]:
        """The filtered responses, in the same order."""


class EachFilter(Filter):
    """A filter that treats each response alone."""

    elementwise = True

    @abstractmethod
    def one(self, response: Any) -> Any:
        """The filtered response."""

    def apply(self, resps: Responses, docs: Sequence[Any]) -> list[Any]:
        """Each response of each request filtered."""
        return [[self.one(response) for response in repeats] for repeats in resps]


FILTERS: dict[str, type[Filter]] = {}


def register_filter(name: str) -> Callable[[type[Filter]], type[Filter]]:
    """Make a filter class known by name."""

    def decorate(cls: type[Filter]) -> type[Filter]:
        FILTERS[name] = cls
        return cls

    return decorate


def get_filter(name: Any) -> type[Filter]:
    """The filter class of a name, or the class itself.

    Raises:
        ConfigError: an unknown name.
    """
    if callable(name):
        return name  # type: ignore[no-any-return]
    _load_builtin()
    if name not in FILTERS:
        hint = did_you_mean(str(name), FILTERS) or f"Known filters: {', '.join(sorted(FILTERS))}."
        raise ConfigError(Fault("filter_list", f"no filter is called '{name}'", do=hint))
    return FILTERS[name]


def filter_names() -> list[str]:
    """Names of all registered filters."""
    _load_builtin()
    return sorted(FILTERS)


def _load_builtin() -> None:
    from fusion_eval.harness import filter_extract  # noqa: F401  (registers its classes)


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


@dataclass(slots=True)
class Pipeline:
    """A chain of filters.

    Args:
        name: appears in result keys: `metric,name`.
        build: one constructor per step.
        fallbacks: how many responses of the last application matched nothing.
    """

    name: str
    build: list[Callable[[], Filter]]
    fallbacks: int = field(default=0)

    def apply(self, requests: Sequence[Request]) -> None:
        """Filter the responses of all requests into `filtered_resps[name]`.

        Raises:
            DataError: a filter that fails, with its place in the chain.
        """
        resps: Any = [request.resps for request in requests]
        docs = [request.doc for request in requests]
        self.fallbacks = 0
        for position, build in enumerate(self.build):
            step = build()
            try:
                resps = list(step.apply(resps, docs))
            except FusionEvalError:
                raise
            except Exception as error:
                where = f"filter_list '{self.name}' step {position + 1} ({type(step).__name__})"
                raise DataError(Fault(where, f"{type(error).__name__}: {error}")) from error
            self.fallbacks += int(getattr(step, "unmatched", 0))
        if len(resps) != len(requests):
            raise DataError(
                Fault(f"filter_list '{self.name}'", f"gives {len(resps)} items", f"{len(requests)}, one per request")
            )
        for request, response in zip(requests, resps, strict=True):
            request.filtered_resps[self.name] = response

    @property
    def keeps_lists(self) -> bool:
        """Whether every step treats each response alone, so that the result is still a list of repeats."""
        return all(build().elementwise for build in self.build)


def build_pipeline(spec: PipelineSpec) -> Pipeline:
    """The pipeline of a spec.

    Raises:
        ConfigError: an unknown filter or an option that it does not have.
    """
    steps: list[Callable[[], Filter]] = []
    for step in spec.steps:
        cls = get_filter(step.function)
        make = _maker(cls, dict(step.options))
        try:
            make()
        except (TypeError, re.error) as error:
            name = step.function if isinstance(step.function, str) else cls.__name__
            raise ConfigError(Fault(f"filter_list '{spec.name}'", f"{name} {dict(step.options)}: {error}")) from error
        steps.append(make)
    return Pipeline(spec.name, steps)


def _maker(cls: type[Filter], options: dict[str, Any]) -> Callable[[], Filter]:
    return lambda: cls(**options)


def default_pipeline() -> Pipeline:
    """The pipeline of tasks without `filter_list`: the first repeat."""
    return build_pipeline(DEFAULT_PIPELINE)
