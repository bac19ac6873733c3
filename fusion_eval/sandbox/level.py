"""Which layers of protection this machine offers, found by trying them."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

from fusion_eval.errors import Fault, SandboxError
from fusion_eval.sandbox.bubblewrap import command as bubblewrap_command
from fusion_eval.sandbox.jail import landlock, seccomp
from fusion_eval.sandbox.privilege import may_change_user

_PROBE_SECONDS = 300  # only a hang takes as long; a slow machine must not lose a layer
_COUNTS_BY_NAMESPACE = (
    5,
    14,
)  # the Linux from which each user namespace has a count of processes and threads of its own


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers in use; `str()` is the `sandbox_level` of a record.

    Args:
        bubblewrap: own namespaces and a read-only view of the machine.
        landlock: the kernel's Landlock version, 0 for none.
        seccomp: system calls are filtered.
        uid: samples run as a user of their own (the sandbox runs as root).
    """

    bubblewrap: bool
    landlock: int
    seccomp: bool
    uid: bool

    def __str__(self) -> str:
        names = ["bubblewrap"] if self.bubblewrap else []
        names += [f"landlock{self.landlock}"] if self.landlock else []
        names += ["seccomp"] if self.seccomp else []
        names += ["uid"] if self.uid else []
        return "+".join([*names, "rlimits"])

    @property
    def holds(self) -> bool:
        """Whether files, network and other processes are out of a sample's reach."""
        return self.seccomp and (self.bubblewrap or self.landlock > 0)


def find_layers(bubblewrap: bool | None = None, landlocked: bool = True) -> Layers:
    """The layers to use.

    Args:
        bubblewrap: None uses it where it works, True demands it, False does without.
        landlocked: false does without Landlock.

    Raises:
        SandboxError: when bubblewrap is demanded and does not work.
    """
    linux = sys.platform == "linux"
    usable = linux and bubblewrap is not False and bubblewrap_works()
    if bubblewrap and not usable:
        raise SandboxError(
            Fault("bubblewrap", "not installed, or this machine forbids namespaces", "a working 'bwrap'",
                  "Install the package 'bubblewrap', or leave bubblewrap=None to use Landlock and seccomp.")
        )  # fmt: skip
    return Layers(
        bubblewrap=usable,
        landlock=landlock.version(ctypes.CDLL(None, use_errno=True)) if linux and landlocked else 0,
        seccomp=linux and seccomp.supported() and _seccomp_in_kernel(),
        uid=linux and may_change_user(),
    )


@functools.cache
def bubblewrap_works() -> bool:
    """Whether `bwrap` can make the namespaces a jail needs (tried once)."""
    if shutil.which("bwrap") is None:
        return False
    command = bubblewrap_command(["/usr/bin/true"], {"LANG": "C"}, [], 1 << 20)
    try:
        return subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _seccomp_in_kernel() -> bool:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return any(line.startswith("Seccomp:") for line in status)
    except OSError:
        return False


def require(layers: Layers, unsafe: bool) -> None:
    """Refuses to run untrusted code where nothing holds it; raises SandboxError."""
    if layers.holds or unsafe:
        return
    machine = f"{platform.system()} {platform.release()} on {platform.machine()}"
    raise SandboxError(
        Fault(
            "sandbox",
            f"{machine} offers only: {layers}",
            "seccomp, and either bubblewrap with namespaces or Landlock (Linux 5.13 or later)",
            "Run on such a machine or in a Linux container; `unsafe=True` runs the code without protection.",
        )
    )


def readable_by_others(path: str) -> bool:
    """Whether any user may enter a folder and everything above it."""
    path = os.path.realpath(path)
    while True:
        if not os.stat(path).st_mode & 0o001:
            return False
        parent = os.path.dirname(path)
        if parent == path:
            return True
        path = parent


def shares_threads(layers: Layers) -> bool:
    """Whether the kernel counts a sample's threads together with those of the user's other programs."""
    return not layers.uid and not (layers.bubblewrap and _linux() >= _COUNTS_BY_NAMESPACE)


def _linux() -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return tuple(map(int, found.groups())) if found else (0, 0)
