"""Batteries with per-metric availability: one missing package or file never takes the other metrics along."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fusion_eval.errors import ConfigError, EvaluationError, Fault, FusionEvalError, did_you_mean, missing_dependency

if TYPE_CHECKING:
    from torchmetrics import Metric

MakeMetric = Callable[[int | None, int | None], "Metric"]
"""(num_classes, ignore_index) -> a fresh metric."""


class MetricUnavailable(EvaluationError):  # noqa: N818 (a state of affairs that a battery notes, not always an error)
    """A metric that has no value on these items: images too small, several references, no matched boxes."""


class Metrics(dict[str, "Metric"]):
    """Metrics by name, and why others of the battery are not among them."""

    def __init__(self, metrics: Mapping[str, Metric] | Iterable[tuple[str, Metric]] = ()) -> None:
        super().__init__(metrics)
        self.unavailable: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Offer:
    """One metric that a battery can build.

    Args:
        make: builds it.
        packages: what must be importable beyond torchmetrics, as {package: extra of fusion_eval}.
        downloads: the weights that it would fetch, or an empty string; such metrics are built only when named.
        default: whether the battery holds it unasked; with weights to fetch, whether its absence is mentioned.
    """

    make: MakeMetric
    packages: Mapping[str, str] | None = None
    downloads: str = ""
    default: bool = True

    def missing(self, name: str) -> FusionEvalError | None:
        """The error with the install line when a package is not there."""
        for package, extra in (self.packages or {}).items():
            if find_spec(package) is None:
                return missing_dependency(package, extra, f"metric '{name}'")
        return None


@dataclass(frozen=True, slots=True)
class OfferedBattery:
    """The metrics of one domain: those built by default, and those built when they are named.

    Args:
        domain: for errors.
        offers: metrics by name, in the order of the report.
    """

    domain: str
    offers: Mapping[str, Offer]

    @property
    def names(self) -> tuple[str, ...]:
        """Every metric that can be asked for."""
        return tuple(self.offers)

    def __call__(self, num_classes: int | None = None, ignore_index: int | None = None) -> Metrics:
        """The default metrics that can be built here; the others' reasons are in `.unavailable`."""
        built = Metrics()
        for name, offer in self.offers.items():
            if not offer.default:
                continue
            if offer.downloads:
                built.unavailable[name] = f"needs {offer.downloads}; name it among the metrics to fetch and use them"
                continue
            missing = offer.missing(name)
            if missing is None:
                built[name] = offer.make(num_classes, ignore_index)
            else:
                built.unavailable[name] = str(missing.faults[0]).removeprefix(f"metric '{name}': ")
        return built

    def pick(
        self, names: Iterable[str], num_classes: int | None = None, ignore_index: int | None = None
    ) -> dict[str, Metric]:
        """The named metrics, opt-in ones too.

        Raises:
            ConfigError: a name that the battery does not offer.
            MissingDependencyError: a package is not installed.
            EvaluationError: weights that cannot be fetched.
        """
        names = list(names)
        unknown = [name for name in names if name not in self.offers]
        if unknown:
            raise ConfigError(
                *(
                    Fault(
                        f"metrics of {self.domain}",
                        f"no metric '{name}'",
                        f"some of {', '.join(self.offers)}",
                        did_you_mean(name, self.offers),
                    )
                    for name in unknown
                )
            )
        return Metrics({name: self._build(name, num_classes, ignore_index) for name in names})

    def _build(self, name: str, num_classes: int | None, ignore_index: int | None) -> Metric:
        offer = self.offers[name]
        missing = offer.missing(name)
        if missing is not None:
            raise missing
        try:
            return offer.make(num_classes, ignore_index)
        except OSError as error:
            raise EvaluationError(
                Fault(
                    f"metric '{name}'",
                    f"{offer.downloads or 'a file that it needs'} cannot be had ({error})",
                    do="Fetch it where there is a network, or leave the metric out.",
                )
            ) from error


def metric_of(path: str, *, classes: str = "", least: int = 2, ignores: bool = False, **options: Any) -> MakeMetric:
    """Builds the metric class at `module:name`, imported when it is built.

    Args:
        path: where the class is.
        classes: the keyword that takes the number of classes, labels or outputs, or an empty string.
        least: the smallest such number; with 1, a number that was not given is 1.
        ignores: whether the class takes `ignore_index`.
        **options: its other keywords.
    """

    def build(num_classes: int | None, ignore_index: int | None) -> Metric:
        given = dict(options)
        if classes:
            given[classes] = _counted(num_classes, classes, least)
        if ignores:
            given["ignore_index"] = _whole(ignore_index)
        module, _, name = path.partition(":")
        with warnings.catch_warnings():  # that outputs are kept is true of every metric here
            warnings.filterwarnings("ignore", message=".*will save all")
            built: Metric = getattr(importlib.import_module(module), name)(sync_on_compute=False, **given)
        return built

    return build


def _whole(ignore_index: int | None) -> int | None:
    if ignore_index is not None and (isinstance(ignore_index, bool) or not isinstance(ignore_index, int)):
        raise ConfigError(Fault("ignore_index", repr(ignore_index), "a whole number, or None"))
    return ignore_index


def _counted(number: int | None, keyword: str, least: int) -> int:
    number = 1 if number is None and least == 1 else number
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise ConfigError(Fault("num_classes", repr(number), f"a whole number, at least {least}"))
    if number is None:
        raise ConfigError(Fault("num_classes", "not given", f"the number of {keyword.removeprefix('num_')}"))
    if number < least:
        do = "For one yes or no per item, see task 'binary'."
        raise ConfigError(Fault("num_classes", str(number), f"at least {least}", do))
    return number
