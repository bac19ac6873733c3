"""What a task needs besides its file while it is built: data, strictness, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.fewshot import SEED
from fusion_eval.harness.randomness import OwnRandomness


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Settings that all tasks of a run share.

    Args:
        data: where data sets come from.
        compat: repeat the peer's known mistakes (leaking shots, document ids by position, and so on).
        fewshot_seed: seed of the few-shot samplers.
        randomness: of the hooks of all tasks, one after the other, with `compat`; else each task has its own.
    """

    data: DataSource = field(default_factory=DataSource)
    compat: bool = False
    fewshot_seed: int | None = SEED
    randomness: OwnRandomness = field(default_factory=OwnRandomness)


_CURRENT: ContextVar[BuildContext | None] = ContextVar("fusion_eval_harness_context", default=None)


def current() -> BuildContext:
    """The context that is being built in, or a default one."""
    return _CURRENT.get() or BuildContext()


@contextmanager
def building(context: BuildContext) -> Iterator[BuildContext]:
    """Tasks constructed inside use `context`."""
    token = _CURRENT.set(context)
    try:
        yield context
    finally:
        _CURRENT.reset(token)
