"""Chains of filters: what happens to the responses of all requests before they are scored."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import fusion_eval.harness.filter.extract
import fusion_eval.harness.filter.simple  # noqa: F401  (both are here for the names that they register)
from fusion_eval.errors import ConfigError, DataError, Fault, FusionEvalError, did_you_mean
from fusion_eval.harness.filter.base import FILTERS, Filter
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import DEFAULT_PIPELINE, PipelineSpec


def get_filter(name: Any) -> type[Filter]:
    """The filter class of a name, or the class itself.

    Raises:
        ConfigError: an unknown name.
    """
    if callable(name):
        return name  # type: ignore[no-any-return]
    if name not in FILTERS:
        hint = did_you_mean(str(name), FILTERS) or f"Known filters: {', '.join(sorted(FILTERS))}."
        raise ConfigError(Fault("filter_list", f"no filter is called '{name}'", do=hint))
    return FILTERS[name]


def filter_names() -> list[str]:
    """Names of all registered filters."""
    return sorted(FILTERS)


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
