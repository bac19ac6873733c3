"""Random numbers of a task's Python: the same in every run, whatever else draws from the global generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

PYTHON_SEED: Final = 0
NUMPY_SEED: Final = 1234


class OwnRandomness:
    """Python's and numpy's global generators, lent to one task at a time; each goes on where it was.

    A hook that shuffles the choices of its documents then does so the same way on every rank, for every model, and
    beside any other tasks.
    """

    def __init__(self) -> None:
        self._state: Any = random.Random(PYTHON_SEED).getstate(), np.random.RandomState(NUMPY_SEED).get_state()
        self._lent = False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside, `random` and `numpy.random` are the task's own; calls may be nested."""
        if self._lent:
            yield
            return
        others = self._swap(self._state)
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            self._state = self._swap(others)

    @staticmethod
    def _swap(state: Any) -> Any:
        held = random.getstate(), np.random.get_state()
        random.setstate(state[0])
        np.random.set_state(state[1])
        return held
