"""The process that candidates are forked from: warm, single-threaded, and never told a test."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fusion_eval.sandbox.jail import candidate, confine, seccomp
from fusion_eval.sandbox.jail.wire import receive_with_fds, send

_WARM = [
    "math",
    "re",
    "typing",
    "collections",
    "itertools",
    "functools",
    "heapq",
    "random",
    "datetime",
    "string",
    "copy",
    "bisect",
    "operator",
    "decimal",
    "fractions",
    "dataclasses",
    "abc",
    "enum",
    "json",
]
_JOB_CAP = 256 << 20
_GRACE = 0.25  # seconds for a process that hung up to end by itself, so that its own signal is seen
_PATIENCE = 20.0  # seconds to wait for a process to be had
_LIBC = ctypes.PyDLL(None, use_errno=True)  # calls keep Python's lock, which the child must hold
LOST = 97  # exit code of a process that could not be locked in


def warm_up(extra: Sequence[str]) -> list[str]:
    """Imports what most programs import; returns the names that are missing."""
    missing = []
    for name in [*_WARM, *extra]:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)  # forks inherit its state; the standard library's is renewed in each
    return missing


def settle() -> None:
    """Moves everything alive out of the collector's sight, so that forks share its pages."""
    seccomp.prepare()
    gc.collect()
    gc.freeze()


def spawn(cell: confine.Cell, limits: dict[str, float], body: Callable[[], NoReturn], kept: Sequence[int],
          streams: tuple[int, int, int] | None = None) -> int:  # fmt: skip
    """Forks a locked-in process that runs `body`; returns its number."""
    plan = confine.plan(cell, limits, kept)
    pid = _fork()
    if pid:
        return pid
    try:
        confine.lock_in(plan, streams)
        random.seed(0)
    except BaseException:  # noqa: BLE001 - never runs a program that is not locked in
        os._exit(LOST)
    try:
        body()
    finally:
        os._exit(98)


def _fork() -> int:
    """The child's number, 0 in the child; waits where others hold every process or all memory for a moment.

    This process has one thread, which holds no lock but Python's own, so a child needs none of what `os.fork` renews
    in it (locks, lists of threads, random numbers). That would copy some 200 pages, most of what a fork costs.
    """
    end = time.monotonic() + _PATIENCE
    while (pid := int(_LIBC.fork())) < 0:
        if time.monotonic() > end:
            raise OSError(ctypes.get_errno(), "fork")
        time.sleep(0.05)
    return pid


def reap(pid: int, grace: float) -> dict[str, Any]:
    """Ends a process, waits for it and tells how it ended and what it used."""
    end = time.monotonic() + grace
    done, status, usage = os.wait4(pid, os.WNOHANG)
    while not done and time.monotonic() < end:
        time.sleep(0.005)
        done, status, usage = os.wait4(pid, os.WNOHANG)
    if not done:
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    return {
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) and done else 0,
        "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "cpu": usage.ru_utime + usage.ru_stime,
        "memory": usage.ru_maxrss * 1024,
    }


def serve(channel: socket.socket, make_cell: Callable[[], confine.Cell]) -> None:
    """Starts and ends candidates for the server at the other end until it hangs up."""
    cell = make_cell()
    confine.settle(cell.folder, cell.filtered)
    pid = 0
    while True:
        try:
            order, fds = receive_with_fds(channel, _JOB_CAP)
        except EOFError:
            return
        if order["do"] == "renew":
            if cell.rules is not None:
                os.close(cell.rules)
            cell = make_cell()
            os.chdir(cell.folder)
        elif order["do"] == "start":
            pid = _start(cell, order["job"], fds)
            send(channel.fileno(), {"pid": pid})
        else:
            send(channel.fileno(), reap(pid, _GRACE if order["expected"] else 0.0))
        del order
        for fd in fds:
            os.close(fd)


def _start(cell: confine.Cell, job: dict[str, Any], fds: list[int]) -> int:
    limits = job["limits"]
    if job["mode"] == "split":
        return spawn(cell, limits, lambda: candidate.serve(job, fds[0], int(limits["result"])), fds)
    null = os.open("/dev/null", os.O_RDWR)
    source = fds[1] if len(fds) > 1 else null
    try:
        return spawn(cell, limits, lambda: candidate.print_output(job), [], (source, fds[0], null))
    finally:
        os.close(null)
