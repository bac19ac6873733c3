"""Command lines for bubblewrap: own namespaces, no network, a read-only system, a scratch folder in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from fusion_eval.sandbox.privilege import may_change_user

_ROOT_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_KILL", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/zero")


def command(
    inner: Iterable[str], environment: Mapping[str, str], folders: Iterable[str], scratch: int, proc: bool = False
) -> list[str]:
    """The arguments that run `inner` in a jail.

    Args:
        inner: program and arguments.
        environment: every variable it will have.
        folders: what it may read besides the system's own programs and libraries.
        scratch: bytes of /tmp, its only writable folder.
        proc: whether it sees its own processes below /proc.
    """
    made: set[str] = set()
    return [
        *("bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", *_privileges(), "--clearenv"),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *_system(),
        *(word for folder in folders for word in _bind(folder, made)),
        *("--dir", "/dev"),
        *(word for path in _DEVICES for word in ("--dev-bind", path, path)),
        *(("--proc", "/proc") if proc else ()),
        *("--size", str(scratch), "--perms", "0711", "--tmpfs", "/tmp"),
        *("--remount-ro", "/", "--chdir", "/tmp", "--"),
        *inner,
    ]


def inside(path: str) -> str:
    """Where the jail sees a file or folder: at its place, or below /jail what lies in /tmp, which is the jail's own."""
    return f"/jail{path}" if path.startswith("/tmp/") else path


def _privileges() -> list[str]:
    if may_change_user():
        return [word for name in _ROOT_CAPABILITIES for word in ("--cap-add", name)]
    return ["--unshare-user", "--disable-userns"]


def _system() -> list[str]:
    """The system's programs and libraries, merged into /usr or not, and the file that lists shared libraries."""
    words = ["--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    words += ["--perms", "0755", "--dir", "/etc"]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        if os.path.exists(path):
            words += ["--ro-bind", path, path]
    return words


def _bind(folder: str, made: set[str]) -> list[str]:
    """A read-only folder at its place; what lies above it is made readable for every user, which bwrap does not."""
    words: list[str] = []
    place = inside(folder)
    parts = place.strip("/").split("/")
    for count in range(1, len(parts)):
        parent = "/" + "/".join(parts[:count])
        if parent not in made:
            made.add(parent)
            words += ["--perms", "0755", "--dir", parent]
    return [*words, "--ro-bind", folder, place]
