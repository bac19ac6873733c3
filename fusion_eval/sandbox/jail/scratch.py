"""The folders that samples write to, emptied between two samples."""

from __future__ import annotations

import os
import stat

_MODE = 0o700


def discard(root: str) -> None:
    """Removes a folder and everything below it, however deep."""
    tidy(root, {})
    os.rmdir(root)


def tidy(root: str, owners: dict[str, int]) -> bool:
    """Empties the named folders below `root` and removes everything else there; true when one had to be made."""
    renewed = False
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if name not in owners:
            remove(root, path)
        elif stat.S_ISDIR(os.lstat(path).st_mode):
            _empty(root, path)
        else:
            os.unlink(path)
    for name, uid in owners.items():
        path = os.path.join(root, name)
        if not os.path.isdir(path):
            os.mkdir(path, _MODE)
            renewed = True
            if uid:
                os.chown(path, uid, uid)
    return renewed


def _empty(root: str, folder: str) -> None:
    if stat.S_IMODE(os.lstat(folder).st_mode) != _MODE:
        os.chmod(folder, _MODE)
    for name in os.listdir(folder):
        remove(root, os.path.join(folder, name))


def remove(root: str, path: str) -> None:
    """Removes a tree however deep: folders below are first moved up beside it, so that no path grows long."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    waiting, count = [path], 0
    while waiting:
        folder = waiting.pop()
        os.chmod(folder, _MODE)
        for name in os.listdir(folder):
            inner = os.path.join(folder, name)
            if not stat.S_ISDIR(os.lstat(inner).st_mode):
                os.unlink(inner)
                continue
            os.chmod(inner, _MODE)
            count += 1
            moved = os.path.join(root, f".removed{count}")
            os.rename(inner, moved)
            waiting.append(moved)
        os.rmdir(folder)
