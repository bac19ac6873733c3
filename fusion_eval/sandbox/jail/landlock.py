"""Landlock: which files a process may touch, whatever its user; no TCP, no signal or abstract socket to the outside."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same numbers on x86_64 and aarch64
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_BASE_RIGHTS = (1 << 13) - 1
_FILE_RIGHTS = _EXECUTE | _WRITE | _READ_FILE | _TRUNCATE
_PR_SET_NO_NEW_PRIVS = 38


def version(libc: ctypes.CDLL) -> int:
    """The kernel's Landlock version, 0 where it has none."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _VERSION_FLAG)))


def _handled(abi: int) -> int:
    rights = _BASE_RIGHTS
    for needed, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        if abi >= needed:
            rights |= right
    return rights


def ruleset(libc: ctypes.CDLL, readable: Sequence[str], writable: Sequence[str]) -> int | None:
    """A descriptor of the rules: read and run below `readable`, everything but devices below `writable`."""
    abi = version(libc)
    if not abi:
        return None
    rights = _handled(abi)
    network, scope = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    attributes = struct.pack("<QQQ", rights, network, scope)[:size]
    rules = int(libc.syscall(_CREATE, attributes, size, 0))
    if rules < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    own = rights & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEVICE)
    for path in readable:
        _allow(libc, rules, path, _EXECUTE | _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(libc, rules, path, own)
    return rules


def runnable(libc: ctypes.CDLL, rules: int, path: str) -> None:
    """Adds the right to run programs below a folder (a compiler's output)."""
    _allow(libc, rules, path, _EXECUTE | _READ_FILE | _READ_DIR)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        if libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("<Qi", rights, handle), 0):
            raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
    finally:
        os.close(handle)


def restrict(libc: ctypes.CDLL, rules: int) -> None:
    """Binds the calling process to the rules for good; raises OSError."""
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.syscall(_RESTRICT, rules, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
