"""Whether this process may run samples as users of their own."""

from __future__ import annotations

import functools
import os

FIRST_UID, UIDS = 60520, 660  # a range that neither people nor services use
_NEEDED = (0, 1, 3, 5, 6, 7)  # CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID


@functools.cache
def may_change_user() -> bool:
    """Root with the capabilities to become another user, in a namespace that has those users."""
    return (
        os.geteuid() == 0 and has_capabilities(_read("/proc/self/status")) and maps_users(_read("/proc/self/uid_map"))
    )


def has_capabilities(status: str) -> bool:
    """Whether the effective capabilities in a process' status hold all that are needed."""
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(masks) and all(int(masks[0], 16) >> number & 1 for number in _NEEDED)


def maps_users(uid_map: str) -> bool:
    """Whether a user namespace's map covers the range."""
    ranges = [tuple(map(int, line.split())) for line in uid_map.splitlines() if len(line.split()) == 3]
    return any(start <= FIRST_UID and start + count > FIRST_UID + UIDS for start, _, count in ranges)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
