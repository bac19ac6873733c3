"""Locks between processes that write to one place."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fusion_eval.errors import Fault, OutputError

_BUSY = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)


@contextmanager
def locked(target: Path, *, shared: bool, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a target: alone, or shared with others that ask for a shared one.

    The lock is a hidden file beside the target, which is removed at the end; a killed process releases it. Where the
    file system has no locks, nothing is locked.

    Raises:
        OutputError: another process holds it, and `wait` is false.
    """
    path = target.parent / f".{target.name}.lock"
    descriptor = _acquired(path, target, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        with suppress(OSError):  # the last holder removes the file; others find it busy
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        os.close(descriptor)


def lock_file(descriptor: int, path: Path) -> None:
    """Lock an open file until it is closed.

    Raises:
        OutputError: another process holds it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            os.close(descriptor)
            raise OutputError(_busy(path)) from error


def _busy(path: Path) -> Fault:
    return Fault(str(path), "another process is writing it", do="Wait for it, or choose another name.")


def _acquired(path: Path, target: Path, operation: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, operation)
        except OSError as error:
            if error.errno not in _BUSY:
                return descriptor
            os.close(descriptor)
            raise OutputError(_busy(target)) from error
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # its last holder removed the file in between


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
