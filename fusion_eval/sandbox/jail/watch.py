"""Waits for a verdict within budgets of CPU time, wall time and disk; CPU time is what counts."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass, field
from typing import Any

from fusion_eval.sandbox.jail.wire import FrameError, Reader, parse

_STEP = 0.1  # seconds between two looks at a running sample
_IDLE_SHARE = 0.02  # a process that used less of a core than this was waiting, or starved
_LATE = 0.5  # a watcher woken later than this did not run, and so did nobody else
_TRIED, _PATIENT = 0.02, 1.0  # seconds of CPU time to ask for, and for how long, to find what there is


@dataclass(slots=True)
class Watch:
    """What one sample may use, and what was seen of it.

    Args:
        pids: its processes, in the watcher's own pid namespace.
        cpu: seconds of CPU time, all processes together.
        wall: seconds after which it ends whatever it used.
        disk: bytes below `folder`.
    """

    pids: list[int]
    cpu: float
    wall: float
    disk: int
    folder: str
    started: float = field(default_factory=time.monotonic)
    next_look: float = field(default_factory=lambda: time.monotonic() + 0.01)

    def look(self) -> dict[str, Any] | None:
        """What `over` says, asked no more often than needed."""
        now = time.monotonic()
        if now < self.next_look:
            return None
        outcome = self.over()
        self.next_look = now + self.step()
        return outcome

    def used(self) -> float:
        """Seconds of CPU time used so far by the processes that still exist."""
        return sum(_cpu_seconds(pid) for pid in self.pids)

    def over(self) -> dict[str, Any] | None:
        """The outcome of a sample that has used up a budget."""
        elapsed, used = time.monotonic() - self.started, self.used()
        if (outcome := out_of_time(self.cpu, self.wall, elapsed, used)) is not None:
            return outcome
        if self.disk and elapsed > 2 * _STEP and folder_bytes(self.folder, self.disk) > self.disk:
            return {"status": "failed", "detail": too_much(self.disk)}
        return None

    def step(self) -> float:
        """Seconds that may pass before the next look."""
        left = min(self.cpu - self.used(), self.wall - (time.monotonic() - self.started))
        return min(_STEP, max(0.002, left))


def too_much(disk: int) -> str:
    """What is said of a program that filled its scratch folder."""
    return f"wrote more than {disk} bytes to disk"


def out_of_time(cpu: float, wall: float, elapsed: float, used: float, patience: float = 0.0) -> dict[str, Any] | None:
    """The outcome of a program after `elapsed` seconds with `used` of CPU time; None while it may go on.

    One that used next to nothing, or reached the wall limit, has waited if there was a processor to be had, and is
    starved if there was none. Waiting is no fault before `patience` seconds.
    """
    if used >= cpu:
        return {"status": "timeout", "detail": f"used {used:.2f} s of CPU time of {cpu:g} s"}
    idle = elapsed >= max(cpu, patience) and used < _IDLE_SHARE * elapsed
    if not idle and elapsed < wall:
        return None
    share = share_to_be_had()
    if idle and share > 5 * _IDLE_SHARE:
        return {"status": "timeout", "detail": f"waited: used {used:.2f} s of CPU time in {elapsed:.1f} s"}
    if elapsed < wall:
        return None
    detail = f"got {used:.2f} s of CPU time in {elapsed:.1f} s"
    return {"status": "timeout", "starved": share * elapsed < cpu, "detail": detail}


def lost(delay: float) -> float:
    """The part of a watcher's delay that does not count: after a long one, nothing else ran either."""
    return delay if delay > _LATE else 0.0


def share_to_be_had() -> float:
    """The part of a processor that a process gets here and now, found by asking for it."""
    start, before = time.monotonic(), time.thread_time()
    while (used := time.thread_time() - before) < _TRIED and time.monotonic() - start < _PATIENT:
        pass
    return used / max(time.monotonic() - start, 1e-9)


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the process' CPU clock: clock_getcpuclockid(3)
    except OSError:
        return 0.0


def folder_bytes(folder: str, enough: int) -> int:
    """Bytes below a folder, counted until there are more than `enough`."""
    total = 0
    waiting = [folder]
    while waiting and total <= enough:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512 + 4096
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    if total > enough:
                        break
        except OSError:
            continue
    return total


class Drain:
    """Keeps the first bytes of a stream and throws the rest away."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd = fd
        self.kept = bytearray()
        self.total = 0
        self._cap = cap

    def pull(self) -> bool:
        """Reads what is there; false at the end."""
        data = os.read(self.fd, 1 << 16)
        self.total += len(data)
        self.kept += data[: max(0, self._cap - len(self.kept))]
        return bool(data)


def result(watch: Watch, fd: int, cap: int) -> dict[str, Any]:
    """The outcome that the sample's process reports, or why there is none."""
    reader = Reader(fd, cap)
    try:
        while (body := reader.take()) is None:
            if _ready(watch, fd) and not reader.pull():
                return {"status": "failed", "detail": "the process ended before its verdict", "ended": True}
            if (outcome := watch.look()) is not None:
                return outcome
        outcome = parse(body)
    except FrameError as error:
        return {"status": "failed", "detail": f"the process sent {error}"}
    if type(outcome) is not dict or outcome.get("status") not in ("passed", "failed", "opaque", "out_of_memory"):
        return {"status": "failed", "detail": "the process sent something that is no verdict"}
    return outcome


def output(watch: Watch, drain: Drain) -> dict[str, Any]:
    """Follows a program's standard output to its end."""
    while True:
        if _ready(watch, drain.fd) and not drain.pull():
            return {"status": "passed", "ended": True}
        if (outcome := watch.look()) is not None:
            return outcome


def _ready(watch: Watch, fd: int) -> bool:
    step = watch.step()
    before = time.monotonic()
    ready, _, _ = select.select([fd], [], [], step)
    watch.started += lost(time.monotonic() - before - step)
    return bool(ready)
