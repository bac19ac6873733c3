"""The sandbox: runs untrusted programs in jails and says what came of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fusion_eval.errors import Fault, SandboxError
from fusion_eval.sandbox import foreign, interpreter, level
from fusion_eval.sandbox.cache import VerdictCache
from fusion_eval.sandbox.pool import Pool
from fusion_eval.sandbox.program import Program, Status, Verdict
from fusion_eval.sandbox.worker import Setup

_DETAIL = 500


class Sandbox:
    """Executes generated programs; use it as a context manager.

    Args:
        allow_code_execution: must be True; nothing generated runs unless the user said so.
        workers: servers that run side by side; by default one a core.
        bubblewrap: None uses it where it works, True demands it, False does without.
        landlock: false does without Landlock (for comparisons; bubblewrap is then needed).
        preload: modules imported ahead in every server, such as "numpy".
        cache: folder in which verdicts are kept from run to run.
        unsafe: run even where no layer of protection works.

    Raises:
        SandboxError: when execution was not allowed, or this machine offers no protection.
    """

    def __init__(
        self,
        *,
        allow_code_execution: bool = False,
        workers: int | None = None,
        bubblewrap: bool | None = None,
        landlock: bool = True,
        preload: Sequence[str] = (),
        cache: str | Path | None = None,
        unsafe: bool = False,
    ) -> None:
        if allow_code_execution is not True:
            raise SandboxError(
                Fault("allow_code_execution", "not given, and these tasks run programs written by a model", "true",
                      "Read docs/code_tasks.md on what the sandbox holds off, then set allow_code_execution=true.")
            )  # fmt: skip
        if workers is not None and workers < 1:
            raise SandboxError(Fault("workers", str(workers), "a positive number"))
        self._layers = level.find_layers(bubblewrap, landlock)
        level.require(self._layers, unsafe)
        self._workers = workers or len(os.sched_getaffinity(0))
        self._setup = Setup(self._layers, tuple(preload), interpreter.current(), self._workers)
        self._cache = VerdictCache(None if cache is None else Path(cache), self.level)
        self._pool: Pool | None = None
        self._open = False

    @property
    def level(self) -> str:
        """The layers of protection in use, such as "bubblewrap+landlock7+seccomp+uid+rlimits"."""
        return str(self._layers)

    def __enter__(self) -> Self:
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def run(self, programs: Iterable[Program]) -> list[Verdict]:
        """One verdict for each program, in order; equal programs are run once.

        Raises:
            SandboxError: outside a `with` block, or when a server cannot be started.
        """
        if not self._open:
            raise SandboxError(Fault("Sandbox.run", "the sandbox is closed", "a call inside `with Sandbox(...)`"))
        programs = list(programs)
        keys = [program.key() for program in programs]
        known = {key: verdict for key in set(keys) if (verdict := self._cache.get(key)) is not None}
        fresh = {key: program for key, program in zip(keys, programs, strict=True) if key not in known}
        known.update(self._execute(fresh))
        return self._in_order(keys, known, fresh)

    def _in_order(self, keys: list[str], known: dict[str, Verdict], fresh: dict[str, Program]) -> list[Verdict]:
        told: set[str] = set()
        verdicts = []
        for key in keys:
            again = key in told or key not in fresh
            verdicts.append(replace(known[key], cached=again))
            told.add(key)
        return verdicts

    def _execute(self, programs: dict[str, Program]) -> dict[str, Verdict]:
        found: dict[str, Verdict] = {}

        def keep(key: str, verdict: Verdict) -> None:
            found[key] = verdict
            self._cache.put(key, verdict)

        python = {key: program for key, program in programs.items() if program.language == "python"}
        if python:
            self._run_python(python, keep)
        others = {key: program for key, program in programs.items() if program.language != "python"}
        if others:
            for key, outcome in foreign.run_all(others, self._setup):
                keep(key, self._verdict(outcome))
        return found

    def _run_python(self, programs: dict[str, Program], keep: Any) -> None:
        if self._pool is None:
            self._pool = Pool(self._workers, self._setup)
            self._refuse_missing(self._pool)
        keys = list(programs)
        jobs = [_job(program) for program in programs.values()]
        self._pool.run(jobs, lambda index, outcome: keep(keys[index], self._verdict(outcome)))

    def _refuse_missing(self, pool: Pool) -> None:
        missing = sorted({name for worker in pool.workers for name in worker.missing})
        if missing:
            raise SandboxError(
                Fault("preload", f"not importable inside the jail: {', '.join(missing)}", "installed modules",
                      f"Install {', '.join(missing)}, or leave them out of `preload`.")
            )  # fmt: skip

    def _verdict(self, outcome: dict[str, Any]) -> Verdict:
        results = outcome.get("results")
        if outcome.get("starved"):
            outcome |= {"status": "infrastructure", "detail": f"no processor to be had: {outcome['detail']}"}
        return Verdict(
            status=Status(outcome["status"]),
            detail=str(outcome.get("detail", ""))[:_DETAIL],
            integrity=str(outcome.get("mode", "split")),
            cpu=round(float(outcome.get("cpu", 0.0)), 4),
            wall=round(float(outcome.get("wall", 0.0)), 4),
            memory=int(outcome.get("memory", 0)),
            signal=int(outcome.get("signal", 0)),
            starved=bool(outcome.get("starved", False)),
            stdout=str(outcome.get("stdout", "")),
            truncated=bool(outcome.get("truncated", False)),
            results=None if results is None else tuple(results),
            sandbox_level=self.level,
        )


def _job(program: Program) -> dict[str, Any]:
    """The message that asks a server to run a program."""
    return {
        "code": program.code,
        "test": program.test,
        "test_key": program.test_key(),
        "entries": program.entry_points,
        "helpers": program.helpers,
        "mode": program.mode,
        "stdin": program.stdin,
        "inputs": program.inputs,
        "expected": program.expected,
        "objects": program.objects,
        "limits": asdict(program.limits),
        "alone": False,
    }
