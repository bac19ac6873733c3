"""Frames on a socket or pipe: four bytes of length, then JSON. Nothing is ever unpickled."""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from typing import Any

_HEADER = struct.Struct("<I")
_CHUNK = 1 << 18


class FrameError(Exception):
    """A peer that sent something that is not a frame."""


def frame(message: object) -> bytes:
    """The bytes of one message."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(len(body)) + body


def write_all(fd: int, data: bytes) -> None:
    """Writes every byte to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def send(fd: int, message: object) -> None:
    """Writes one message to a blocking descriptor."""
    write_all(fd, frame(message))


class Reader:
    """Collects frames from one descriptor; raises FrameError past `cap` bytes and EOFError at the end."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd = fd
        self._cap = cap
        self._buffer = bytearray()

    def pull(self) -> bool:
        """Reads what is there; false at the end of the stream."""
        data = os.read(self.fd, _CHUNK)
        self._buffer += data
        return bool(data)

    def take(self) -> bytes | None:
        """The next whole frame's body, if it has arrived."""
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > self._cap:
            raise FrameError(f"a message of {length} bytes, more than the {self._cap} allowed")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return body

    def read(self, deadline: float | None = None) -> Any:
        """The next message; raises TimeoutError past the deadline (monotonic seconds)."""
        while True:
            body = self.take()
            if body is not None:
                return parse(body)
            if deadline is not None:
                left = max(0.0, deadline - time.monotonic())
                if not select.select([self.fd], [], [], left)[0]:
                    raise TimeoutError
            if not self.pull():
                raise EOFError


def parse(body: bytes) -> Any:
    """The message in a frame's body; raises FrameError for anything but JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message that is not JSON: {type(error).__name__}") from None


def send_with_fds(channel: socket.socket, message: object, fds: list[int]) -> None:
    """One message with open descriptors attached to its first byte."""
    data = frame(message)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]
    sent = channel.sendmsg([data], rights)
    write_all(channel.fileno(), data[sent:])


def receive_with_fds(channel: socket.socket, cap: int) -> tuple[Any, list[int]]:
    """The next message and the descriptors that came with it; raises EOFError at the end."""
    size = socket.CMSG_SPACE(4 * array.array("i").itemsize)
    head, ancillary, _, _ = channel.recvmsg(_HEADER.size, size)
    if not head:
        raise EOFError
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    head += _exactly(channel, _HEADER.size - len(head))
    (length,) = _HEADER.unpack(head)
    if length > cap:
        raise FrameError(f"a message of {length} bytes, more than the {cap} allowed")
    return parse(_exactly(channel, length)), list(fds)


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, _CHUNK))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
