"""How a comparison is made: which test, which correction over which family, against which reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, TypedDict, final

from fusion_eval.errors import Fault, FusionEvalError, StatisticsError, did_you_mean, listed
from fusion_eval.stats.bootstrap import check_interval
from fusion_eval.stats.correction import FAMILIES, check_correction
from fusion_eval.stats.paired import check_test
from fusion_eval.stats.resample import RESAMPLES

UNITS = ("auto", "items", "seeds")


class SettingsArguments(TypedDict, total=False):
    """The keyword arguments that become `Settings`."""

    test: str
    unit: str
    alpha: float
    correction: str
    family: str
    reference: str | None
    rope: float | Mapping[str, float] | None
    power: float
    interval: str
    resamples: int
    seed: int


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The choices behind a comparison, all checked when made.

    Args:
        test: `auto`, or the name of a test. `auto` is a paired t over items for one run, over items clustered where
            clusters are given, and the crossed t over seeds and items for several runs.
        unit: what a named test counts: `items`, `seeds`, or `auto` (seeds when every method has several runs).
        alpha: two-sided level of the tests; intervals have the level 1 - alpha.
        correction: holm, bonferroni, fdr_bh or none.
        family: which tests are corrected together: the pairs of one `metric`, or of `all` metrics.
        reference: compare every method to this one; None compares all pairs.
        rope: the largest difference that means nothing in practice, in the metric's units; one number or one per
            metric.
        power: the chance for which minimal detectable effects are stated.
        interval: bootstrap intervals of the items: percentile or bca.
        resamples: bootstrap resamples.
        seed: of the bootstrap's generator (PCG64).
    """

    test: str = "auto"
    unit: str = "auto"
    alpha: float = 0.05
    correction: str = "holm"
    family: str = "metric"
    reference: str | None = None
    rope: float | Mapping[str, float] | None = None
    power: float = 0.8
    interval: str = "percentile"
    resamples: int = RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        faults = [fault for check in (_names, _numbers) for fault in check(self)]
        if faults:
            raise StatisticsError(*faults)

    @property
    def level(self) -> float:
        """The confidence level of the intervals."""
        return 1.0 - self.alpha

    def rope_of(self, metric: str) -> float | None:
        """The region of practical equivalence of a metric, when one is set."""
        return self.rope.get(metric) if isinstance(self.rope, Mapping) else self.rope

    def reference_faults(self, methods: Sequence[str]) -> list[Fault]:
        """A reference that is no method."""
        if self.reference is None or self.reference in methods:
            return []
        hint = did_you_mean(self.reference, methods)
        return [Fault("reference", repr(self.reference), f"one of {listed(methods, 20)}", hint)]

    def rope_faults(self, metrics: Sequence[str]) -> list[Fault]:
        """Ropes of metrics that are not there."""
        faults = []
        for metric in self.rope if isinstance(self.rope, Mapping) else ():
            if metric not in metrics:
                hint = did_you_mean(metric, metrics)
                faults.append(Fault("rope", f"no metric {metric!r}", f"some of {listed(metrics, 20)}", hint))
        return faults


def settings_of(arguments: SettingsArguments) -> Settings:
    """The settings from keyword arguments; an unknown name is an error with the nearest known one."""
    known = [field.name for field in fields(Settings)]
    unknown = [name for name in arguments if name not in known]
    if unknown:
        do = " ".join(filter(None, (did_you_mean(name, known) for name in unknown)))
        raise StatisticsError(
            Fault("compare", f"unknown argument {listed(unknown)}", f"some of {', '.join(known)}", do)
        )
    return Settings(**arguments)


def settings_among(arguments: SettingsArguments, metrics: Sequence[str]) -> SettingsArguments:
    """The arguments without ropes of metrics that are not among these, for one of several comparisons."""
    rope = arguments.get("rope")
    if not isinstance(rope, Mapping):
        return arguments
    return {**arguments, "rope": {name: value for name, value in rope.items() if name in metrics}}


def _names(settings: Settings) -> list[Fault]:
    faults: list[Fault] = []
    checks: tuple[tuple[Callable[[str], str], str], ...] = (
        (check_test, settings.test),
        (check_correction, settings.correction),
        (check_interval, settings.interval),
    )
    for check, name in checks:
        try:
            check(name)
        except FusionEvalError as error:
            faults.extend(error.faults)
    faults += _choice("unit", settings.unit, UNITS) + _choice("family", settings.family, FAMILIES)
    return faults


def _choice(where: str, value: str, choices: Sequence[str]) -> list[Fault]:
    if value in choices:
        return []
    return [Fault(where, repr(value), f"one of {listed(choices)}", did_you_mean(str(value), choices))]


def _numbers(settings: Settings) -> list[Fault]:
    faults = []
    for name, value in (("alpha", settings.alpha), ("power", settings.power)):
        if not is_number(value) or not 0.0 < value < 1.0:
            faults.append(Fault(name, repr(value), "a number between 0 and 1"))
    if not _is_count(settings.resamples, 100):
        expected = "a whole number, at least 100; 10000 for p-values near 0.05"
        faults.append(Fault("resamples", repr(settings.resamples), expected))
    if not _is_count(settings.seed, 0):
        faults.append(Fault("seed", repr(settings.seed), "a whole number, at least 0"))
    if settings.reference is not None and not isinstance(settings.reference, str):
        faults.append(Fault("reference", repr(settings.reference), "a method's name"))
    ropes = settings.rope.items() if isinstance(settings.rope, Mapping) else [("", settings.rope)]
    for metric, rope in ropes:
        if rope is not None and (not is_number(rope) or not rope > 0):
            faults.append(Fault(f"rope {metric}".strip(), repr(rope), "a positive difference, such as 0.005"))
    return faults


def is_number(value: Any) -> bool:
    """Whether a value is a real number, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
