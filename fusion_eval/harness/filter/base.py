"""What a filter is, and filters by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

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
