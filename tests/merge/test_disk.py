"""Files get their place at once, and are read ahead only where that is of use."""

from __future__ import annotations

import errno
import os

import pytest

from fusion_eval.merge import disk


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    return path


def test_reserving_keeps_what_is_written_and_gives_the_size(file):
    descriptor = os.open(file, os.O_RDWR)
    try:
        disk.reserve(descriptor, 100_000)
        assert os.fstat(descriptor).st_size in (100_000, 256 * 64)  # some file systems cannot
        assert os.pread(descriptor, 256, 0) == bytes(range(256))
        disk.reserve(descriptor, 0)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, True), (errno.EOPNOTSUPP, False)])
def test_a_full_disk_is_an_error_and_a_file_system_that_cannot_is_none(file, monkeypatch, number, raised):
    def refuse(*_):
        disk.ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(disk, "_fallocate", lambda: refuse)
    if raised:
        with pytest.raises(OSError, match="space") as error:
            disk.reserve(0, 10)
        assert error.value.errno == number
    else:
        disk.reserve(0, 10)


@pytest.mark.parametrize("known", [True, False])
def test_what_is_in_memory_is_not_asked_for(file, monkeypatch, known):
    asked = []
    monkeypatch.setattr(disk, "_in_memory", lambda descriptor, place: known)
    monkeypatch.setattr(os, "posix_fadvise", lambda *request: asked.append(request[1:3]), raising=False)
    disk.read_ahead(file, 1000, 5000)
    assert asked == ([] if known else [(1000, 4000)])


def test_places_that_are_looked_at_lie_within(file, monkeypatch):
    seen = []
    monkeypatch.setattr(disk, "_in_memory", lambda descriptor, place: seen.append(place) or True)
    disk.read_ahead(file, 1000, 5001)
    assert seen == [1000, 2000, 3000, 4000, 5000]


def test_a_byte_beyond_the_end_is_not_in_memory(file):
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert not disk._in_memory(descriptor, 1 << 20)
    finally:
        os.close(descriptor)
