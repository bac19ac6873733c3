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


def close_all_but(kept: Iterable[int]) -> None:
    """Closes every descriptor except 0 to 2 and the named ones."""
    low = 3
    for fd in [*sorted(fd for fd in set(kept) if fd > 2), 1 << 20]:
        if fd > low:
            os.closerange(low, fd)
        low = fd + 1


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


def limit(pairs: Sequence[tuple[int, int]]) -> None:
    """Sets resource limits, soft and hard, below what is in force."""
    for kind, value in pairs:
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def settle(folder: str, filtered: bool) -> None:
    """What every sample inherits unchanged: no output, place, mask, environment, limits, the filter's common part."""
    silence()
    os.chdir(folder)
    os.umask(0o077)
    os.environ["TMPDIR"] = os.environ["HOME"] = folder
    limit([(kind, 0) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE)])
    if filtered:
        seccomp.install(LIBC, "common")


def lock_in(cell: Cell, limits: dict[str, float], kept: Sequence[int], streams: tuple[int, int, int] | None) -> None:
    """Locks the calling, freshly forked process in; raises OSError where a layer that was promised fails."""
    if streams is not None:
        silence(streams)
    close_all_but([*kept, *([] if cell.rules is None else [cell.rules])])
    if cell.uid:
        become(cell.uid, cell.search)
    die_with_parent()
    limit(
        [
            (resource.RLIMIT_AS, int(limits["memory"])),
            (resource.RLIMIT_CPU, int(limits["cpu"]) + 2),
            (resource.RLIMIT_FSIZE, int(limits["file_size"])),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_SIGPENDING, _SIGNALS),
            (resource.RLIMIT_NPROC, int(limits["threads"])),
        ]
    )
    LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if cell.rules is not None:
        landlock.restrict(LIBC, cell.rules)
        os.close(cell.rules)
    if cell.filtered:
        if cell.guards_attributes:
            seccomp.install(LIBC, "attributes")
        seccomp.install(LIBC, "alone")
