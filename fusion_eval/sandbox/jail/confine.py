"""Gives up everything a sample does not need: descriptors, user, limits, files, system calls. There is no way back."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusion_eval.sandbox.jail import landlock, seccomp

LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_CAP_AMBIENT, _AMBIENT_RAISE = 47, 2
_CAPABILITY_VERSION = 0x20080522
_SIGKILL = 9
_SIGNALS = 128  # queued signals and timers, which are counted by user
CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL, SETGID, SETUID = 0, 1, 2, 3, 5, 6, 7
_SERVER_CAPABILITIES = (CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL, SETGID, SETUID)


@dataclass(frozen=True, slots=True)
class Cell:
    """How one process is locked in.

    Args:
        uid: the user to become, 0 to stay.
        folder: its scratch folder; the server's working directory, which the process inherits.
        rules: descriptor of its Landlock rules, None without Landlock.
        filtered: whether system calls are filtered.
        search: keep the right to read files of other users (Landlock bounds it; a root-only interpreter needs it).
        guards_attributes: whether it may not change modes, owners and times of files.
    """

    uid: int
    folder: str
    rules: int | None
    filtered: bool
    search: bool
    guards_attributes: bool = False


def set_capabilities(kept: Iterable[int], inheritable: bool = False) -> None:
    """Keeps only these capabilities; raises OSError."""
    mask = sum(1 << number for number in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    head = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    pass_low, pass_high = (low, high) if inheritable else (0, 0)
    body = struct.pack("<6I", low, low, pass_low, high, high, pass_high)
    if LIBC.capset(head, body):
        raise OSError(ctypes.get_errno(), "capset")


def drop_to_server_capabilities() -> None:
    """Gives up what a root server does not need; raises OSError."""
    head, body = struct.pack("<Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    if LIBC.capget(head, body):
        raise OSError(ctypes.get_errno(), "capget")
    permitted = struct.unpack("<6I", body.raw)[1]
    set_capabilities(number for number in _SERVER_CAPABILITIES if permitted >> number & 1)


def become(uid: int, search: bool, inherit: bool = False) -> None:
    """Changes to an unprivileged user for good, keeping at most the right to read other users' files."""
    if search:
        LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if not search:
        return
    set_capabilities([DAC_READ_SEARCH], inheritable=inherit)
    if inherit and LIBC.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, DAC_READ_SEARCH, 0, 0):
        raise OSError(ctypes.get_errno(), "ambient capability")


def gaps(kept: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The ranges of descriptors between the named ones and above 2, to be closed."""
    low, found = 3, []
    for fd in [*sorted(fd for fd in set(kept) if fd > 2), 1 << 20]:
        if fd > low:
            found.append((low, fd))
        low = fd + 1
    return tuple(found)


def close_all_but(kept: Iterable[int]) -> None:
    """Closes every descriptor except 0 to 2 and the named ones."""
    for low, high in gaps(kept):
        os.closerange(low, high)


def silence(inputs: tuple[int, int, int] | None = None) -> None:
    """Standard input, output and error onto the given descriptors, by default onto nothing."""
    for target, source in enumerate(inputs or _nothing()):
        if source != target:
            os.dup2(source, target)


def _nothing() -> tuple[int, int, int]:
    null = os.open("/dev/null", os.O_RDWR)
    return null, null, null


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends."""
    LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def bounded(pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, tuple[int, int]], ...]:
    """Resource limits, soft and hard, below what is in force."""
    found = []
    for kind, value in pairs:
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        found.append((kind, (bound, bound)))
    return tuple(found)


def limit(pairs: Sequence[tuple[int, int]]) -> None:
    """Sets resource limits, soft and hard, below what is in force."""
    for kind, both in bounded(pairs):
        resource.setrlimit(kind, both)


def settle(folder: str, filtered: bool) -> None:
    """What every sample inherits unchanged: no output, place, mask, environment, limits, the filter's common part."""
    silence()
    os.chdir(folder)
    os.umask(0o077)
    os.environ["TMPDIR"] = os.environ["HOME"] = folder
    limit([(kind, 0) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE)])
    if filtered:
        seccomp.install(LIBC, "common")


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be worked out before the fork, where a touched page is not a copied one.

    Args:
        cell: how the process is locked in.
        gaps: descriptors to close.
        limits: resource limits to set.
        filters: parts of the system-call filter to install.
    """

    cell: Cell
    gaps: tuple[tuple[int, int], ...]
    limits: tuple[tuple[int, tuple[int, int]], ...]
    filters: tuple[seccomp.Filter, ...]


def plan(cell: Cell, limits: dict[str, float], kept: Sequence[int]) -> Plan:
    """How to lock in a process that keeps these descriptors and may use so much."""
    pairs = [
        (resource.RLIMIT_AS, int(limits["memory"])),
        (resource.RLIMIT_CPU, int(limits["cpu"]) + 2),
        (resource.RLIMIT_FSIZE, int(limits["file_size"])),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
        (resource.RLIMIT_NPROC, int(limits["threads"])),
    ]
    parts = [*(["attributes"] if cell.guards_attributes else []), "alone"] if cell.filtered else []
    open_ = [*kept, *([] if cell.rules is None else [cell.rules])]
    return Plan(cell, gaps(open_), bounded(pairs), tuple(map(seccomp.part, parts)))


def lock_in(plan: Plan, streams: tuple[int, int, int] | None) -> None:
    """Locks the calling, freshly forked process in; raises OSError where a layer that was promised fails."""
    cell = plan.cell
    if streams is not None:
        silence(streams)
    for low, high in plan.gaps:
        os.closerange(low, high)
    if cell.uid:
        become(cell.uid, cell.search)
    die_with_parent()
    for kind, both in plan.limits:
        resource.setrlimit(kind, both)
    LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if cell.rules is not None:
        landlock.restrict(LIBC, cell.rules)
        os.close(cell.rules)
    for part in plan.filters:
        part.install(LIBC)
