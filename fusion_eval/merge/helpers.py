"""Processes that work beside this one: threads of Python would wait for each other between short operations."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, final

import torch

from fusion_eval.errors import Fault, MethodError

THREAD_NAME: Final = "fusion_eval.merge"
"""How threads and processes of the loop are called."""

_ledgers: list[weakref.ref[Ledger]] = []


@final
class Ledger(dict[str, str]):
    """Notes by tensor, which helpers that were forked later bring home with their results."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        super().__init__()
        _ledgers[:] = [ledger for ledger in _ledgers if ledger() is not None]
        _ledgers.append(weakref.ref(self))


@final
class Helper:
    """A forked process that calls a function with one item after another and hands back what it returns.

    Args:
        function: what it does; items and results are pickled, exceptions are raised here.
        others: helpers that were made before.
    """

    def __init__(self, function: Callable[[Any], Any], others: Sequence[Helper] = ()) -> None:
        items, self._items = os.pipe()
        self._results, results = os.pipe()
        self._ledgers = list(_ledgers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which BLAS has anyway
            self._process = os.fork()
        if not self._process:
            for helper in (self, *others):
                os.close(helper._items)
                os.close(helper._results)
            _serve(function, items, results, self._ledgers)
        os.close(items)
        os.close(results)

    def __call__(self, item: Any) -> Any:
        """What the function returns for an item.

        Raises:
            MethodError: the process has ended, for instance since the memory was full.
        """
        try:
            _send(self._items, item)
            done, result, notes = _receive(self._results)
        except (EOFError, BrokenPipeError) as error:
            found = "a process that merged tensors was killed"
            raise MethodError(Fault("merge", found, do="Free memory, or merge with threads=1.")) from error
        for ledger, more in zip(self._ledgers, notes, strict=True):
            kept = ledger()
            if kept is not None:
                kept.update(more)
        if not done:
            raise result
        return result

    def close(self) -> None:
        """End the process, whatever it does."""
        os.close(self._items)
        os.close(self._results)
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


@contextmanager
def helpers(function: Callable[[Any], Any], count: int) -> Iterator[list[Helper]]:
    """So many helpers, which end with the block."""
    made: list[Helper] = []
    try:
        for _ in range(count):
            made.append(Helper(function, made))
        yield made
    finally:
        for helper in made:
            helper.close()


def may_fork() -> bool:
    """Whether a fork is safe here: on Linux, without other threads of Python that may hold locks, without a GPU."""
    single = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and single and not torch.cuda.is_available()


def leave_if_alone(parent: int) -> None:
    """End this process if the one that forked it was killed."""
    if os.getppid() != parent:
        os._exit(1)


def _serve(function: Callable[[Any], Any], items: int, results: int, ledgers: Sequence[Any]) -> NoReturn:
    """What the forked process does until it is killed or nobody asks any more."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
        gc.freeze()  # a collection would copy every page that is shared with the parent
        threading.current_thread().name = f"{THREAD_NAME} process"
        torch.set_num_threads(1)
        while True:
            item = _receive(items)
            for ledger in ledgers:
                if ledger() is not None:
                    ledger().clear()
            try:
                answer = True, function(item)
            except BaseException as error:  # noqa: BLE001 - raised again in the parent
                answer = False, _portable(error)
            _send(results, (*answer, [dict(ledger() or {}) for ledger in ledgers]))
    finally:
        os._exit(0)


def _portable(error: BaseException) -> BaseException:
    """The error, or one with its text where it cannot be pickled."""
    with suppress(Exception):
        copied = pickle.loads(pickle.dumps(error))
        if type(copied) is type(error) and str(copied) == str(error):
            return error
    return RuntimeError("".join(traceback.format_exception(error)))


def _send(descriptor: int, value: Any) -> None:
    raw = pickle.dumps(value)
    raw = len(raw).to_bytes(8, "little") + raw
    while raw:
        raw = raw[os.write(descriptor, raw) :]


def _receive(descriptor: int) -> Any:
    return pickle.loads(_read(descriptor, int.from_bytes(_read(descriptor, 8), "little")))


def _read(descriptor: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = os.read(descriptor, count - len(found))
        if not part:
            raise EOFError
        found += part
    return found
