"""What neighbours take from a program: threads of the same user, memory, disk. Such an outcome is tried again alone."""

from __future__ import annotations

import _thread
import os
import resource
import signal
import struct
import time
from typing import Any

# What failing says when the kernel had nothing left: of threads, processes, memory, descriptors, disk.
_SIGNS = (
    "can't start new thread",
    "Resource temporarily unavailable",
    "Cannot allocate memory",
    "Too many open files in system",
    "No space left on device",
    "Disk quota exceeded",
    "unable to create native thread",
    "thread constructor failed",
    "uv_thread_create",
    "Cannot fork",
    "failed to spawn thread",
    "newosproc",
)
_ROOM = 1 << 20
_MOST_TASKS = 1 << 20


def spoilt(outcome: dict[str, Any], *ends: dict[str, Any]) -> bool:
    """Whether neighbours, or the kernel in want of memory, may be behind a failure."""
    if outcome["status"] not in ("failed", "killed", "out_of_memory"):
        return False
    said = f"{outcome.get('detail', '')} {outcome.get('stderr', '')}"
    return any(sign in said for sign in _SIGNS) or any(end["signal"] == signal.SIGKILL for end in ends)


def memory_is_promised_strictly() -> bool:
    """Whether the machine refuses memory that others have asked for and not used."""
    try:
        with open("/proc/sys/vm/overcommit_memory", "rb") as file:
            return file.read().strip() == b"2"
    except OSError:
        return False


def disk_is_full(folder: str) -> bool:
    """Whether the file system of a folder has no room, in bytes or in files."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize < _ROOM or (room.f_files > 0 and room.f_favail == 0)


def tasks_of_user() -> int:
    """The processes and threads that the kernel counts for this user, 0 where it sets no limit.

    Many of them may be out of sight, in other containers or namespaces; the kernel counts by user all the same.
    So the least limit is sought under which one more thread starts, in a process of its own.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, struct.pack("<q", _least_limit()))
        finally:
            os._exit(0)
    os.close(write)
    answer = os.read(read, 8)
    os.close(read)
    os.waitpid(pid, 0)
    return int(struct.unpack("<q", answer)[0]) if len(answer) == 8 else 0


def _least_limit() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    top = _MOST_TASKS if hard == resource.RLIM_INFINITY else min(hard, _MOST_TASKS)
    low, high = 0, top
    while low < high:
        middle = (low + high) // 2
        resource.setrlimit(resource.RLIMIT_NPROC, (middle, hard))
        if _starts_a_thread():
            high = middle
        else:
            low = middle + 1
    return low


def _starts_a_thread() -> bool:
    over = _thread.allocate_lock()
    over.acquire()
    try:
        _thread.start_new_thread(over.release, ())
    except RuntimeError:
        return False
    over.acquire()
    time.sleep(0.0002)  # the kernel counts a thread until it is gone
    return True
