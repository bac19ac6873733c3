"""The folders that samples write to, emptied between two samples."""

from __future__ import annotations

import os
import stat
import time

_MODE = 0o700
_PATIENCE = 10.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def discard(root: str) -> None:
    """Removes a folder and everything below it, however deep; programs that are about to end may still write there."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            tidy(root, {})
            os.rmdir(root)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def tidy(root: str, owners: dict[str, int]) -> bool:
    """Empties the named folders below `root` and removes everything else there; true when one had to be made."""
    renewed = False
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            continue
        if stat.S_IMODE(os.lstat(path).st_mode) != _MODE:
            os.chmod(path, _MODE)
        empty(path)
        if name not in owners:
            os.rmdir(path)
    for name, uid in owners.items():
        path = os.path.join(root, name)
        if not os.path.isdir(path):
            os.mkdir(path, _MODE)
            renewed = True
            if uid:
                os.chown(path, uid, uid)
    return renewed


def empty(folder: str) -> None:
    """Removes everything below a folder; one descriptor walks down and up, so no path and no stack grows long."""
    here = os.open(folder, _FOLDER)
    below: list[list[str]] = [_unlink_files(here)]
    path: list[str] = []
    while True:
        if below[-1]:
            name = below[-1].pop()
            os.chmod(name, _MODE, dir_fd=here)
            here = _go(here, name)
            path.append(name)
            below.append(_unlink_files(here))
        elif path:
            here = _go(here, "..")
            below.pop()
            os.rmdir(path.pop(), dir_fd=here)
        else:
            os.close(here)
            return


def _go(here: int, name: str) -> int:
    there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _unlink_files(here: int) -> list[str]:
    """Removes the files of a folder; returns the names of the folders in it."""
    folders = []
    with os.scandir(here) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=here)
    return folders
