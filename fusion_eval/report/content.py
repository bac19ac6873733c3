"""What a run's report says, in whatever form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.report.table import Row, rows_of
from fusion_eval.report.values import ModelResult


@dataclass(frozen=True, slots=True)
class ReportContent:
    """What was measured on which models, and the circumstances.

    Args:
        status: "complete", "running" (so far; or killed), "failed" or "dry run".
        models: results in the order of evaluation.
        receipt: versions, git, configuration, overrides, seed, devices.
        inputs: source and fingerprint of every checkpoint that was read.
        seconds: wall time by phase.
        notes: what a reader must know.
        error: what a failed run failed with.
        table: the main metric by task; made of `models` where it is not given.
    """

    status: str
    models: tuple[ModelResult, ...] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None
    table: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        if not self.table:
            object.__setattr__(self, "table", rows_of(self.models))

    @property
    def partial(self) -> bool:
        """Whether a limit left items of any task out."""
        return any(task.partial for model in self.models for task in model.tasks)

    @property
    def subject(self) -> ModelResult | None:
        """The model that the run is about: the merged one, else the last."""
        merged = [model for model in self.models if model.role == "merged"]
        return (merged or list(self.models) or [None])[-1]  # type: ignore[list-item]

    def model(self, role: str) -> ModelResult | None:
        """The first model of a role."""
        return next((model for model in self.models if model.role == role), None)

    def without_items(self) -> Self:
        """The same without per-item columns."""
        models = tuple(
            replace(model, tasks=tuple(replace(task, items={}, forms={}) for task in model.tasks))
            for model in self.models
        )
        return replace(self, models=models)

    def objective(self, path: str) -> float:
        """A number such as `average.accuracy` or `mnist.loss` of the subject, or `base/average.accuracy`.

        Raises:
            ConfigError: the report has no such number.
        """
        name, slash, inner = path.rpartition("/")
        named = {model.name: model for model in self.models}
        subject = named.get(name) if slash else self.subject
        numbers = {} if subject is None else _flat(subject.as_dict())
        if inner not in numbers:
            raise ConfigError(
                Fault(
                    "objective",
                    f"no number '{path}' in the report",
                    f"one of {listed(sorted(numbers), 12)}",
                    did_you_mean(inner, numbers),
                )
            )
        return float(numbers[inner])


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            numbers.update(_flat(value, f"{prefix}{key}."))
        else:
            numbers[f"{prefix}{key}"] = value
    return numbers
