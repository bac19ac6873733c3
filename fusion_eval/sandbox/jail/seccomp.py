"""The system-call filters: one for a Python sample (no other process at all), one for a compiled program's tree.

The instruction set is classic BPF as in `linux/bpf_common.h`; the filter sees the call's number, the architecture and
six 64-bit arguments (`struct seccomp_data`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct

from fusion_eval.sandbox.jail import syscalls

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 0x00050001, 0x00050026
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16
_CLONE_THREAD = 0x00010000
_NEW_NAMESPACES = 0x7E020080  # NEWNS, CGROUP, UTS, IPC, USER, PID, NET and NEWTIME
_PID_MARK = 0x5EC0C0DE
_MARK_BYTES = struct.pack("<I", _PID_MARK)

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2

# Calls that act on processes, networks or the machine: refused to every program.
_ALWAYS = [
    "socket",
    "connect",
    "accept",
    "accept4",
    "bind",
    "listen",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "pidfd_open",
    "pidfd_getfd",
    "pidfd_send_signal",
    "process_madvise",
    "process_mrelease",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "open_by_handle_at",
    "name_to_handle_at",
    "reboot",
    "swapon",
    "swapoff",
    "syslog",
    "acct",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "ioperm",
    "iopl",
    "quotactl",
    "quotactl_fd",
    "personality",
    "shmget",
    "shmat",
    "shmctl",
    "shmdt",
    "semget",
    "semop",
    "semctl",
    "semtimedop",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "mq_open",
    "mq_unlink",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "mknod",
    "mknodat",
    "memfd_secret",
    "fanotify_init",
    "inotify_init",  # a user has few; and Landlock lets them name what happens in folders that cannot be read
    "inotify_init1",
    "inotify_add_watch",
    "lookup_dcookie",
    "vhangup",
    "sethostname",
    "setdomainname",
    "migrate_pages",
    "move_pages",
    "seccomp",
]
# Calls that a single Python process does not need either. Its server may need some of them.
_ALONE = [
    "execve",
    "capset",
    "execveat",
    "fork",
    "vfork",
    "setsid",
    "setpgid",
    "tkill",
    "memfd_create",
    "setpriority",
    "sched_setparam",
    "sched_setscheduler",
    "sched_setattr",
    "sched_setaffinity",
    "ioprio_set",
]
# F_SETOWN, F_SETSIG, F_SETOWN_EX, and F_SETPIPE_SZ, whose pages are counted by user; FIOSETOWN, SIOCSPGRP
_BY_COMMAND = {"fcntl": (8, 10, 15, 1031), "ioctl": (0x8901, 0x8902)}


class _Program:
    """Instructions in the making."""

    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> None:
        self.code.append((_LOAD, 0, 0, offset))

    def jump(self, test: int, value: int, if_true: int, if_false: int) -> None:
        self.code.append((test, if_true, if_false, value))

    def answer(self, action: int) -> None:
        self.code.append((_RETURN, 0, 0, action))

    def deny(self, number: int, action: int = _EPERM) -> None:
        self.jump(_EQUAL, number, 0, 1)
        self.answer(action)

    def argument_among(self, number: int, index: int, values: tuple[int, ...], found: int, other: int | None) -> None:
        """For one call: `found` when the argument is among the values, else `other` (None: the next rules decide)."""
        rest = 2 * len(values) + 1
        self.jump(_EQUAL, number, 0, rest + 1)
        self.load(_ARGUMENT + 8 * index)
        for value in values:
            self.jump(_EQUAL, value, 0, 1)
            self.answer(found)
        if other is None:
            self.load(_NUMBER)
        else:
            self.answer(other)

    def argument_bits(self, number: int, mask: int, found: int, other: int) -> None:
        """For one call: `found` when its first argument has any bit of the mask, else `other`."""
        self.jump(_EQUAL, number, 0, 4)
        self.load(_ARGUMENT)
        self.jump(_ANY_BIT, mask, 0, 1)
        self.answer(found)
        self.answer(other)


@functools.cache
def program(machine: str, part: str) -> tuple[tuple[int, int, int, int], ...]:
    """The instructions of one part: "common" for every process of a jail, then "alone" or "tree" for a program's own.
    "attributes" is for samples that share their user with the files outside.

    The kernel works through a filter for every call number when it is installed, so the long part is installed once,
    in the process that samples are forked from. Places that compare with the process' own number hold a mark.
    """
    table = syscalls.TABLES[machine]
    out = _Program()
    out.load(_ARCH)
    out.jump(_EQUAL, syscalls.AUDIT_ARCH[machine], 1, 0)
    out.answer(_KILL)
    out.load(_NUMBER)
    _PARTS[part](out, table)
    out.answer(_ALLOW)
    return tuple(out.code)


def _common(out: _Program, table: dict[str, int]) -> None:
    out.jump(_AT_LEAST, syscalls.FIRST_UNKNOWN, 0, 1)
    out.answer(_ENOSYS)  # newer calls and the x32 table
    out.deny(table["clone3"], _ENOSYS)  # its flags lie in memory, out of the filter's sight; libc falls back to clone
    for name in _ALWAYS:
        if name in table:
            out.deny(table[name])
    for name, commands in _BY_COMMAND.items():
        out.argument_among(table[name], 1, commands, _EPERM, None)


def _alone(out: _Program, table: dict[str, int]) -> None:
    for name in _ALONE:
        if name in table:
            out.deny(table[name])
    out.argument_bits(table["clone"], _CLONE_THREAD, _ALLOW, _EPERM)
    out.argument_among(table["kill"], 0, (_PID_MARK,), _ALLOW, _EPERM)
    out.argument_among(table["tgkill"], 0, (_PID_MARK,), _ALLOW, _EPERM)
    out.argument_among(table["prlimit64"], 0, (0, _PID_MARK), _ALLOW, _EPERM)


def _tree(out: _Program, table: dict[str, int]) -> None:
    out.deny(table["capset"])
    out.argument_bits(table["clone"], _NEW_NAMESPACES, _EPERM, _ALLOW)


def _attributes(out: _Program, table: dict[str, int]) -> None:
    """Modes, owners, times and attributes of files, which Landlock does not watch."""
    for number in next(
        own for machine, own in syscalls.ATTRIBUTES.items() if syscalls.TABLES[machine] is table
    ).values():
        out.deny(number)


_PARTS = {"attributes": _attributes, "common": _common, "alone": _alone, "tree": _tree}


@functools.cache
def _packed(machine: str, part: str) -> bytes:
    pack = struct.Struct("<HBBI").pack
    return b"".join(pack(*instruction) for instruction in program(machine, part))


def filter_bytes(machine: str, part: str, pid: int) -> bytes:
    """A part for one process, ready for the kernel (`struct sock_filter[]`)."""
    return _packed(machine, part).replace(_MARK_BYTES, struct.pack("<I", pid))


class Filter:
    """One part in memory, where the kernel reads it; processes that are forked inherit it.

    Args:
        name: "common", "alone", "tree" or "attributes".
    """

    def __init__(self, name: str) -> None:
        code = _packed(_MACHINE, name)
        self._marks = tuple(place for place in range(4, len(code), 8) if code[place : place + 4] == _MARK_BYTES)
        self._code = ctypes.create_string_buffer(code, len(code))
        head = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))
        self._head = ctypes.create_string_buffer(head)

    def install(self, libc: ctypes.CDLL) -> None:
        """Puts the part on the calling process, and on all it will start, for good; raises OSError."""
        for place in self._marks:
            struct.pack_into("<I", self._code, place, os.getpid())
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        if libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, self._head, 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp filter")


@functools.cache
def part(name: str) -> Filter:
    """A part, assembled once."""
    return Filter(name)


def prepare() -> None:
    """Assembles a sample's parts, so that forks inherit them."""
    if supported():
        part("alone")
        part("attributes")


def supported() -> bool:
    """Whether a table for this machine exists."""
    return platform.machine() in syscalls.TABLES


def install(libc: ctypes.CDLL, name: str) -> None:
    """Puts one part on the calling process, and on all it will start, for good; raises OSError."""
    part(name).install(libc)


_MACHINE = platform.machine()
