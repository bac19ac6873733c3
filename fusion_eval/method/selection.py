"""Which tensors a method merges, and what the others become: one policy for every method."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fusion_eval.errors import ConfigError, Fault, did_you_mean

_STATISTICS = re.compile(r"(^|\.)running_(mean|var)$")
_PATTERNS = ("include", "exclude", "tables")
_CHOICES = {
    "others": ("base", "average"),
    "statistics": ("base", "average", "merge"),
    "kernels": ("average", "flatten", "stack"),
    "nonfinite": ("error", "keep"),
}


@dataclass(frozen=True, slots=True)
class Tensors:
    """Regular expressions over tensor names, and policies.

    Integer and boolean tensors always come from the base. A pool without a base averages where `base` is said.

    Args:
        include: tensors to merge; none given means all.
        exclude: tensors not to merge (embeddings, heads, norms), whatever `include` says.
        tables: matrices that are tables of vectors (embeddings): steps on singular values treat them as vectors.
        others: what tensors that are not merged become: `base` or `average` of the experts.
        statistics: what running means and variances of normalisation layers become: `base`, `average` of the
            experts, or `merge` (treated as weights, which can make a variance negative).
        kernels: what steps on singular values do with tensors of three and more axes: `average` them, as the papers do;
            `flatten` them to a matrix of outputs by everything else (convolutions); take them as a `stack` of matrices,
            each of the last two axes (experts of a mixture in one tensor).
        nonfinite: what merged values that are NaN or infinite are: an `error` that names the model, or, with `keep`,
            values like others, and a note in the report.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    others: str = "base"
    statistics: str = "average"
    kernels: str = "average"
    nonfinite: str = "error"

    @classmethod
    def of(cls, value: Tensors | Mapping[str, Any] | None, where: str = "method.tensors") -> Tensors:
        """The policy that a configuration describes.

        Raises:
            ConfigError: an unknown key, no regular expression, no policy; all of them at once.
        """
        if isinstance(value, Tensors):
            return value
        given = {} if value is None else dict(value)
        known = [field.name for field in fields(cls)]
        faults = [
            Fault(f"{where}.{key}", "no such option", f"one of {', '.join(known)}", did_you_mean(key, known))
            for key in given
            if key not in known
        ]
        for key in _PATTERNS:
            given[key] = _patterns(given.get(key))
            faults += _pattern_faults(f"{where}.{key}", given[key])
        for key, allowed in _CHOICES.items():
            if key in given and given[key] not in allowed:
                do = did_you_mean(str(given[key]), allowed)
                faults.append(Fault(f"{where}.{key}", f"{given[key]!r}", f"one of {', '.join(allowed)}", do))
        if faults:
            raise ConfigError(*faults)
        return cls(**given)

    def route(self, name: str) -> str:
        """What happens to a tensor: `merge`, `base` or `average`."""
        if _STATISTICS.search(name) and self.statistics != "merge":
            return self.statistics
        wanted = not self.include or any(re.search(pattern, name) for pattern in self.include)
        unwanted = any(re.search(pattern, name) for pattern in self.exclude)
        return "merge" if wanted and not unwanted else self.others

    def is_table(self, name: str) -> bool:
        """Whether a matrix is a table of vectors."""
        return any(re.search(pattern, name) for pattern in self.tables)

    def faults(self, names: Sequence[str], where: str = "method.tensors") -> list[Fault]:
        """Patterns that fit no tensor of a pool."""
        return [
            Fault(f"{where}.{key}", f"'{pattern}' fits none of the pool's {len(names)} tensors")
            for key in _PATTERNS
            for pattern in getattr(self, key)
            if not any(re.search(pattern, name) for name in names)
        ]


def _patterns(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(str(pattern) for pattern in value)


def _pattern_faults(where: str, patterns: Sequence[str]) -> list[Fault]:
    faults = []
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            faults.append(Fault(where, f"'{pattern}' is not a regular expression ({error})"))
    return faults
