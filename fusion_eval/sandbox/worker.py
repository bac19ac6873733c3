"""The host's side of one sandbox server: starting it, feeding it, noticing that it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from fusion_eval.errors import Fault, SandboxError
from fusion_eval.sandbox import bubblewrap, interpreter, level, users
from fusion_eval.sandbox.jail import scratch
from fusion_eval.sandbox.jail.server import KEPT_TESTS
from fusion_eval.sandbox.jail.wire import Reader, frame, parse, send

_ANSWER_CAP = 512 << 20
_START_SECONDS = 300.0  # only a hang takes as long
_SCRATCH = 256 << 20
_THREADS = 64
_TEST_FIELDS = ("test", "helpers", "entries", "inputs", "expected")


@dataclass(frozen=True, slots=True)
class Setup:
    """What every server of a sandbox has in common, and how many there are."""

    layers: level.Layers
    preload: tuple[str, ...]
    python: interpreter.Interpreter
    workers: int


def environment(home: str) -> dict[str, str]:
    """Every variable a jail has; nothing of the host's own environment."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MALLOC_ARENA_MAX": "2",  # an arena for each thread would use up the address space that a sample has
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }


def _memory_folder() -> str | None:
    """A roomy folder in memory for scratch files, which a disk removes slowly; None for the usual place."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return "/dev/shm" if room.f_bavail * room.f_frsize > 4 * _SCRATCH and os.access("/dev/shm", os.W_OK) else None


class Worker:
    """One running server. Jobs are answered in the order in which they were posted."""

    def __init__(self, slot: int, setup: Setup) -> None:
        self.slot = slot
        self.setup = setup
        self._users = users.take(2) if setup.layers.uid else users.Users((0, 0))
        self.in_flight: deque[int] = deque()
        self.deadline = float("inf")
        self._out = bytearray()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._folder = (
            "" if setup.layers.bubblewrap else tempfile.mkdtemp(prefix="fusion_eval_box_", dir=_memory_folder())
        )
        self._root = f"{self._folder or '/tmp'}/{'box' if self._folder else ''}".rstrip("/")
        if self._folder:
            os.chmod(self._folder, 0o711)
            os.mkdir(self._root, 0o711)
        self.socket, self._process = self._start()
        self._reader = Reader(self.socket.fileno(), _ANSWER_CAP)
        self.missing = self._greet()
        self.socket.setblocking(False)

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        python = self._python()
        inner = [
            python.program,
            "-I",
            "-S",
            f"{python.jail}/start.py",
            "server",
            str(theirs.fileno()),
            *python.packages,
        ]
        variables = environment(self._root)
        # -I would drop PYTHONHASHSEED with the other PYTHON* variables: -s -S -P keep it and the path clean
        inner[1:3] = ["-s", "-S", "-P"]
        command = inner
        if self.setup.layers.bubblewrap:
            command = bubblewrap.command(inner, variables, self.setup.python.folders, _SCRATCH)
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=variables, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        return ours, process

    def _python(self) -> interpreter.Interpreter:
        """The Python as the jail sees it."""
        python = self.setup.python
        return python.seen_by(bubblewrap.inside) if self.setup.layers.bubblewrap else python

    def _greet(self) -> list[str]:
        """Sends the configuration; returns the modules that could not be imported ahead."""
        layers, python = self.setup.layers, self._python()
        config = {
            "root": self._root,
            "uids": self._users.numbers,
            "search": layers.uid and not layers.bubblewrap and not all(map(level.readable_by_others, python.folders)),
            "landlock": layers.landlock > 0,
            "seccomp": layers.seccomp,
            "readable": [
                "/usr",
                "/lib",
                "/lib64",
                *python.folders,
                "/dev/null",
                "/dev/urandom",
                "/dev/zero",
                "/etc/ld.so.cache",
            ],
            "threads": _THREADS * (self.setup.workers if level.shares_threads(layers) else 1),
            "shares_threads": level.shares_threads(layers),
            "shares_user": not layers.uid and not layers.bubblewrap,
            "preload": list(self.setup.preload),
        }
        try:
            send(self.socket.fileno(), config)
            return list(self._reader.read(time.monotonic() + _START_SECONDS)["missing"])
        except (OSError, EOFError, TimeoutError) as error:
            said = self.close()
            raise SandboxError(
                Fault("sandbox server", f"did not start ({type(error).__name__}): {said or 'no message'}",
                      "a Python that runs inside the jail")
            ) from None  # fmt: skip

    def post(self, index: int, job: dict[str, Any], seconds: float) -> None:
        """Queues a job; tests that the server still has are not sent again."""
        if job["mode"] != "output":
            job = self._without_known_tests(job)
        if not self.in_flight:
            self.deadline = time.monotonic() + seconds
        self.in_flight.append(index)
        self._out += frame(job)
        self.flush()

    def _without_known_tests(self, job: dict[str, Any]) -> dict[str, Any]:
        """Mirrors the server's own memory of tests, which sees the same jobs in the same order."""
        key = job["test_key"]
        if key in self._known:
            self._known.move_to_end(key)
            return {name: value for name, value in job.items() if name not in _TEST_FIELDS}
        self._known[key] = None
        if len(self._known) > KEPT_TESTS:
            self._known.popitem(last=False)
        return job

    @property
    def wants_to_write(self) -> bool:
        """Whether part of a job has not been taken yet."""
        return bool(self._out)

    def flush(self) -> None:
        """Writes as much as the server takes now."""
        while self._out:
            try:
                sent = self.socket.send(self._out[: 1 << 18])
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()  # the end of the stream will be seen by the reader
                return
            del self._out[:sent]

    def answers(self, seconds: float) -> list[tuple[int, dict[str, Any]]]:
        """The verdicts that have arrived, with their jobs' numbers; raises EOFError when the server is gone."""
        try:
            if not self._reader.pull():
                raise EOFError
        except ConnectionError:
            raise EOFError from None
        found: list[tuple[int, dict[str, Any]]] = []
        while (body := self._reader.take()) is not None:
            found.append((self.in_flight.popleft(), parse(body)))
        if found:
            self.deadline = time.monotonic() + seconds if self.in_flight else float("inf")
        return found

    def close(self) -> str:
        """Ends the server and everything it started; returns the end of what it said."""
        if self.socket.fileno() < 0:
            return ""
        self.socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        said = ""
        if self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)
            said = (self._process.stderr.read() or b"")[-500:].decode(errors="replace").strip()
            self._process.stderr.close()
        if self._folder:
            scratch.discard(self._root)
            os.rmdir(self._folder)
            self._folder = ""
        self._users.give_back()
        return said
