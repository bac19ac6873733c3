"""What a user can put right, told in one shape: where, found, expected, do.

FusionEvalError
├── ConfigError             a configuration that cannot be composed, built or run
├── MissingDependencyError  an optional package that is not installed
├── CheckpointError         weights that cannot be read
│   └── AlignmentError      tensors that do not match across the models of a pool
├── MethodError             a merging method whose requirements the pool does not meet
├── DataError               a data set, batch or label that cannot be evaluated
├── EvaluationError         a model whose outputs cannot be scored (NaN, wrong shape)
├── StatisticsError         scores that cannot be compared
├── SandboxError            untrusted code that may not, or cannot, be executed safely
└── OutputError             a place that cannot be written
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Args:
        where: a config key, a file (and line), a tensor or an item.
        found: what is there.
        expected: what should be there.
        do: what the user can do about it.
    """

    where: str
    found: str
    expected: str = ""
    do: str = ""

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.found}" if self.where else self.found]
        if self.expected:
            parts.append(f"expected {self.expected}")
        text = "; ".join(part.rstrip(".") for part in parts) + "."
        return f"{text} {self.do}" if self.do else text


class FusionEvalError(Exception):
    """A fault, or several, that the user can put right; shown without a traceback."""

    def __init__(self, *faults: Fault | str) -> None:
        super().__init__(*faults)
        self.faults: tuple[Fault, ...] = tuple(
            fault if isinstance(fault, Fault) else Fault("", fault) for fault in faults
        )

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return str(self.faults[0])
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        return f"{len(self.faults)} faults:\n{lines}"


class ConfigError(FusionEvalError):
    """A configuration that cannot be composed, built or run."""


class MissingDependencyError(FusionEvalError):
    """An optional package that is not installed."""


class CheckpointError(FusionEvalError):
    """Weights that cannot be read."""


class AlignmentError(CheckpointError):
    """Tensors that do not match across the models of a pool."""


class MethodError(FusionEvalError):
    """A merging method whose requirements the pool does not meet."""


class DataError(FusionEvalError):
    """A data set, batch or label that cannot be evaluated."""


class EvaluationError(FusionEvalError):
    """A model whose outputs cannot be scored."""


class StatisticsError(FusionEvalError):
    """Scores that cannot be compared."""


class SandboxError(FusionEvalError):
    """Untrusted code that may not, or cannot, be executed safely."""


class OutputError(FusionEvalError):
    """A place that cannot be written."""


def missing_dependency(package: str, extra: str, purpose: str) -> MissingDependencyError:
    """The error for an optional package, with the exact install line."""
    return MissingDependencyError(
        Fault(purpose, f"the package '{package}' is not installed", do=f'Run: pip install "fusion_eval[{extra}]"')
    )


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """A hint such as "Did you mean 'ties'?", or an empty string when nothing is near."""
    near = difflib.get_close_matches(str(word), list(choices), n=3, cutoff=0.6)
    if not near:
        return ""
    return "Did you mean " + " or ".join(f"'{name}'" for name in near) + "?"


def listed(names: Sequence[str], shown: int = _SHOWN) -> str:
    """The first names of a list and how many more there are."""
    head = ", ".join(str(name) for name in names[:shown])
    rest = len(names) - shown
    return f"{head} and {rest} more" if rest > 0 else head
