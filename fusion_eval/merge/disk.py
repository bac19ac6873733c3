"""What the operating system does for large files: it reserves their place and reads them ahead."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

_UNKNOWN: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_PROBES: Final = 4


def reserve(descriptor: int, size: int) -> None:
    """Have the file system set a file's whole place aside, where it can: writing costs half as much then.

    Raises:
        OSError: the disk is full.
    """
    call = _fallocate()
    if call is None or not size or not call(descriptor, 0, 0, size):
        return
    number = ctypes.get_errno()
    if number not in _UNKNOWN:
        raise OSError(number, os.strerror(number))


@functools.cache
def _fallocate() -> Callable[..., int] | None:
    """Linux' own call; Python offers only POSIX', which writes zeros where a file system cannot reserve."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


def read_ahead(path: Path, begin: int, end: int) -> None:
    """Ask the operating system, where it can, to read bytes of a file in the background.

    Asking walks over every page, so it is left out where a few of them are in memory already.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not all(_in_memory(descriptor, begin + (end - 1 - begin) * n // _PROBES) for n in range(_PROBES + 1)):
            os.posix_fadvise(descriptor, begin, end - begin, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


def _in_memory(descriptor: int, place: int) -> bool:
    """Whether a byte of a file can be had without waiting; False where nobody can tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        return os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except OSError:
        return False
