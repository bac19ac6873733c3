"""A process and everything it started: what they use together, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Tree:
    """Descendants of one process.

    Args:
        pids: their numbers.
        cpu: seconds of CPU time, with that of children they have waited for.
        memory: resident bytes, all together.
        tasks: how many processes and threads they are.
    """

    pids: tuple[int, ...]
    cpu: float
    memory: int
    tasks: int


def below(root: int) -> Tree:
    """The living descendants of a process."""
    parents: dict[int, list[int]] = {}
    facts: dict[int, tuple[float, int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            _note(int(name), parents, facts)
    found: list[int] = []
    waiting = list(parents.get(root, ()))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += parents.get(pid, ())
    cpu, memory, tasks = (sum(column) for column in zip((0.0, 0, 0), *(facts[pid] for pid in found), strict=True))
    return Tree(tuple(found), cpu, int(memory), int(tasks))


def _note(pid: int, parents: dict[int, list[int]], facts: dict[int, tuple[float, int, int]]) -> None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return
    parents.setdefault(int(fields[1]), []).append(pid)
    facts[pid] = (sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE, int(fields[17]))


def end_all(root: int, uid: int) -> bool:
    """Kills every descendant of this process and waits for them; true when none is left.

    Orphans come back to `root`, which has asked the kernel for that. A user of their own lets one signal reach all.
    """
    for _ in range(_ROUNDS):
        pids = below(root).pids
        if not pids:
            return True
        if uid:
            _kill_user(uid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return False


def _kill_user(uid: int) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
