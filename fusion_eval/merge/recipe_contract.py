"""What mergekit's methods take: which parameters, from where, how many models, and whether a base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

REQUIRED: Final = "required"
OPTIONAL: Final = "optional"
INPUT: Final = "input"
"""What `base_model` is to a method: needed, allowed, or one more input."""


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter: a number, or a flag; its default, or None where a value must be given."""

    default: float | bool | None
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """A method's contract.

    Args:
        base: `required`, `optional` or `input`.
        low: the fewest models beside the base.
        high: the most, or None.
        shared: parameters of the merge, by name.
        own: parameters of each model beside the base, by name.
        unused: parameters that are allowed and have no effect here.
    """

    base: str
    low: int = 1
    high: int | None = None
    shared: Mapping[str, Option] = field(default_factory=dict)
    own: Mapping[str, Option] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters."""
        return (*self.own, *self.shared)


def _number(default: float | None) -> Option:
    return Option(default)


def _flag(default: bool) -> Option:
    return Option(default, flag=True)


_WEIGHT: Final[Mapping[str, Option]] = {"weight": _number(None)}


def _deltas(*, normalize: bool, rescale: bool, unused: tuple[str, ...] = (), **own: Option) -> Contract:
    """The contract that all methods on task vectors share."""
    shared = {"normalize": _flag(normalize), "rescale": _flag(rescale), "lambda": _number(1.0)}
    each = {**_WEIGHT, "density": _number(1.0), **own}
    shared["int8_mask"] = _flag(False)
    return Contract(REQUIRED, low=0, shared=shared, own=each, unused=("int8_mask", *unused))


CONTRACTS: Final[Mapping[str, Contract]] = {
    "linear": Contract(INPUT, shared={"normalize": _flag(True)}, own=_WEIGHT),
    "slerp": Contract(REQUIRED, high=1, shared={"t": _number(None)}),
    "nuslerp": Contract(
        OPTIONAL,
        low=2,
        high=2,
        shared={"nuslerp_flatten": _flag(True), "nuslerp_row_wise": _flag(False)},
        own=_WEIGHT,
    ),
    "multislerp": Contract(OPTIONAL, shared={"normalize_weights": _flag(True), "eps": _number(1e-8)}, own=_WEIGHT),
    "karcher": Contract(INPUT, shared={"max_iter": _number(10), "tol": _number(1e-5)}),
    "passthrough": Contract(INPUT, high=1, own={"scale": _number(1.0)}),
    "task_arithmetic": _deltas(normalize=False, rescale=False, unused=("density", "rescale")),
    "ties": _deltas(normalize=True, rescale=False),
    "dare_linear": _deltas(normalize=False, rescale=True),
    "dare_ties": _deltas(normalize=False, rescale=True),
    "breadcrumbs": _deltas(normalize=False, rescale=False, gamma=_number(0.01)),
    "breadcrumbs_ties": _deltas(normalize=False, rescale=False, gamma=_number(0.01)),
    "della": _deltas(normalize=True, rescale=True, epsilon=_number(0.15)),
    "della_linear": _deltas(normalize=False, rescale=True, epsilon=_number(0.15)),
    "sce": Contract(REQUIRED, shared={"select_topk": _number(1.0), "int8_mask": _flag(False)}, unused=("int8_mask",)),
    "ram": Contract(REQUIRED, shared={"epsilon": _number(1e-5)}),
    "ramplus_tl": Contract(REQUIRED, shared={"r": _number(0.1), "alpha": _number(0.2), "epsilon": _number(1e-5)}),
    "model_stock": Contract(REQUIRED, low=2, shared={"filter_wise": _flag(False)}),
    "nearswap": Contract(REQUIRED, high=1, shared={"t": _number(None)}),
    "arcee_fusion": Contract(REQUIRED, high=1),
}


def is_known(parameter: str) -> bool:
    """Whether some method has a parameter of this name."""
    return any(parameter in contract.names for contract in CONTRACTS.values())
