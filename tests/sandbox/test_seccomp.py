"""The filters, interpreted here instruction by instruction for both machines, and their tables against the kernel's."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fusion_eval.sandbox.jail import seccomp, syscalls

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
PID = 4711


def answer(machine: str, alone: bool, number: int, *args: int, arch: int | None = None) -> int:
    """What the two parts say to a call: the kernel takes the stricter answer, killing first, then errors."""
    parts = ("common", "alone" if alone else "tree")
    return min((_answer(machine, part, number, args, arch) for part in parts), key=lambda a: (a != KILL, a == ALLOW, a))


def _answer(machine: str, part: str, number: int, args: tuple[int, ...], arch: int | None) -> int:
    code = seccomp.filter_bytes(machine, part, PID)
    instructions = list(struct.iter_unpack("<HBBI", code))
    arch = syscalls.AUDIT_ARCH[machine] if arch is None else arch
    data = struct.pack("<IIQ6Q", number, arch, 0, *args, *[0] * (6 - len(args)))
    place, value = 0, 0
    while True:
        op, if_true, if_false, operand = instructions[place]
        place += 1
        if op == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif op == 0x06:
            return operand
        else:
            truth = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[op]
            place += if_true if truth else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
class TestFilter:
    def test_processes_and_networks_are_refused(self, machine: str) -> None:
        table = syscalls.TABLES[machine]
        for name in ("socket", "ptrace", "mount", "bpf", "keyctl", "io_uring_setup", "pidfd_open", "unshare", "setns"):
            assert answer(machine, True, table[name]) == EPERM, name
            assert answer(machine, False, table[name]) == EPERM, name

    def test_only_other_languages_may_start_programs(self, machine: str) -> None:
        table = syscalls.TABLES[machine]
        assert answer(machine, True, table["execve"]) == EPERM
        assert answer(machine, False, table["execve"]) == ALLOW
        assert answer(machine, True, table["clone"], 17) == EPERM
        assert answer(machine, False, table["clone"], 17) == ALLOW

    def test_threads_are_allowed_and_namespaces_are_not(self, machine: str) -> None:
        clone = syscalls.TABLES[machine]["clone"]
        assert answer(machine, True, clone, 0x3D0F00) == ALLOW
        assert answer(machine, False, clone, 0x10000000) == EPERM
        assert answer(machine, True, syscalls.TABLES[machine]["clone3"]) == ENOSYS

    def test_signals_reach_only_the_process_itself(self, machine: str) -> None:
        table = syscalls.TABLES[machine]
        for name in ("kill", "tgkill"):
            assert answer(machine, True, table[name], PID) == ALLOW
            assert answer(machine, True, table[name], PID + 1) == EPERM
            assert answer(machine, True, table[name], 2**32 - 1) == EPERM
        assert answer(machine, True, table["prlimit64"], 0) == ALLOW
        assert answer(machine, True, table["prlimit64"], 1) == EPERM

    def test_signals_by_file_owner_are_refused(self, machine: str) -> None:
        table = syscalls.TABLES[machine]
        assert answer(machine, True, table["fcntl"], 3, 8) == EPERM
        assert answer(machine, True, table["fcntl"], 3, 1) == ALLOW
        assert answer(machine, False, table["ioctl"], 3, 0x8901) == EPERM

    def test_unknown_calls_and_machines(self, machine: str) -> None:
        assert answer(machine, True, 463) == ENOSYS
        assert answer(machine, True, 0x40000000 | 57) == ENOSYS
        assert answer(machine, True, 0, arch=0x40000003) == KILL

    def test_everyday_calls_pass(self, machine: str) -> None:
        everyday = {
            "x86_64": [0, 1, 3, 9, 12, 13, 53, 60, 202, 257, 318],
            "aarch64": [56, 57, 63, 64, 93, 98, 199, 214, 222],
        }
        assert {answer(machine, True, number) for number in everyday[machine]} == {ALLOW}


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


@pytest.mark.parametrize("machine", HEADERS)
def test_tables_agree_with_the_kernel_headers(machine: str) -> None:
    try:
        lines = [
            line.split() for line in Path(HEADERS[machine]).read_text().splitlines() if line.startswith("#define __NR")
        ]
    except OSError:
        pytest.skip("no kernel headers")
    known = {}
    for words in lines:
        if len(words) > 2 and words[2].isdigit():
            known[words[1].removeprefix("__NR_").removeprefix("__NR3264_")] = int(words[2])
    table = {**syscalls.TABLES[machine], **syscalls.ATTRIBUTES[machine]}
    assert {name: number for name, number in table.items() if name in known} == {
        name: known[name] for name in table if name in known
    }
    assert len(set(table) & set(known)) > 60
