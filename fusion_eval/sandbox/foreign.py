"""Programs in other languages: one jail each, compiled and run inside it, dropped with everything in it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any

from fusion_eval.sandbox import bubblewrap, languages, level, users
from fusion_eval.sandbox.jail import scratch
from fusion_eval.sandbox.jail.runner import PACE
from fusion_eval.sandbox.jail.wire import FrameError, Reader, send
from fusion_eval.sandbox.program import Program
from fusion_eval.sandbox.worker import Setup, environment

_ANSWER_CAP = 64 << 20
_SCRATCH = 512 << 20
_SLACK = 60.0
_THREADS = 192
_GREEDY = 64  # tasks of one program from which others may lack some
_SIGNAL_SCOPE = 6  # the Landlock version from which a process cannot signal others of the same user
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/dev/null",
           "/dev/urandom", "/dev/zero", "/proc/meminfo", "/proc/cpuinfo", "/proc/stat")  # fmt: skip


def run_all(programs: dict[str, Program], setup: Setup) -> Iterator[tuple[str, dict[str, Any]]]:
    """The outcome of each program by its key, as they end; a missing toolchain is an outcome, not a failure."""
    with ThreadPoolExecutor(setup.workers) as threads:
        waiting = {}
        for key, program in programs.items():
            obstacle = _obstacle(program, setup)
            if obstacle:
                yield key, {"status": "unavailable", "detail": obstacle}
            else:
                waiting[threads.submit(_run, program, setup)] = key
        failed: dict[str, dict[str, Any]] = {}
        for done in as_completed(waiting):
            outcome = done.result()
            if outcome["status"] == "passed":
                yield waiting[done], outcome
            else:
                failed[waiting[done]] = outcome
    most = max((outcome.get("tasks", 0) for outcome in failed.values()), default=0)
    greedy = most > _GREEDY and level.shares_threads(setup.layers)
    for key, outcome in failed.items():
        again = greedy or outcome.get("starved") or outcome.get("crowded")
        yield key, _run(programs[key], setup) if again else outcome


def _obstacle(program: Program, setup: Setup) -> str:
    """Why a program cannot be run here."""
    layers = setup.layers
    if not (layers.bubblewrap or layers.uid or layers.landlock >= _SIGNAL_SCOPE):
        return "other languages need bubblewrap, root, or Landlock 6: nothing else keeps their processes from yours"
    language = languages.find_language(program.language)
    missing = languages.missing_tools(program.language)
    if not missing:
        return f"{program.language} needs bubblewrap on this machine" if language.proc and not layers.bubblewrap else ""
    package = language.package
    return f"no {' and no '.join(missing)} on this machine (Debian: apt-get install {package})"


def _run(program: Program, setup: Setup) -> dict[str, Any]:
    user = users.take(1) if setup.layers.uid else users.Users((0,))
    folder = "" if setup.layers.bubblewrap else tempfile.mkdtemp(prefix="fusion_eval_run_")
    root = os.path.join(folder, "box") if folder else "/tmp"
    if folder:
        os.chmod(folder, 0o711)
        os.mkdir(root, 0o711)
    try:
        outcome = _in_jail(_job(program, setup, root, user.numbers[0]), program, setup)
    finally:
        if folder:
            scratch.discard(root)
            os.rmdir(folder)
        user.give_back()
    return _judged(program, outcome)


def _judged(program: Program, outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome with the language's own rule for failed assertions, and with what the program said about them."""
    errors = str(outcome.get("stderr", "")).strip()
    quiet = languages.find_language(program.language).quiet and program.mode != "output"
    if quiet and errors and outcome["status"] == "passed":
        outcome["status"] = "failed"
    if errors and outcome["status"] == "failed" and "compile" not in outcome.get("detail", ""):
        outcome["detail"] = f"{outcome.get('detail', '')} {errors}".strip()
    return {**outcome, "mode": "output" if program.mode == "output" else "in_process"}


def _job(program: Program, setup: Setup, root: str, uid: int) -> dict[str, Any]:
    text = f"{program.code}\n{program.test}" if program.test else program.code
    steps = languages.build(program.language, text)
    tools = languages.toolchain(program.language)
    path = [os.path.dirname(tool) for tool in tools.programs.values()]
    return {
        "root": root,
        "uid": uid,
        "search": bool(uid) and not setup.layers.bubblewrap and not all(map(level.readable_by_others, tools.folders)),
        "landlock": setup.layers.landlock > 0,
        "seccomp": setup.layers.seccomp,
        "readable": [*_SYSTEM, *tools.folders, *(["/proc"] if setup.layers.bubblewrap else [])],
        "threads": _THREADS * (setup.workers if level.shares_threads(setup.layers) else 1),
        "shares_threads": level.shares_threads(setup.layers),
        "environment": {
            **environment(root),
            "OPENSSL_CONF": "/dev/null",
            "PATH": ":".join(dict.fromkeys([*path, "/usr/bin", "/bin"])),
        },
        "source": steps.source,
        "text": text,
        "compile": steps.compile,
        "run": steps.run,
        "stdin": program.stdin,
        "limits": asdict(program.limits),
    }


def _in_jail(job: dict[str, Any], program: Program, setup: Setup) -> dict[str, Any]:
    """Starts the runner, gives it the job and waits for its answer."""
    python = setup.python
    ours, theirs = socket.socketpair()
    seen_python = python.seen_by(bubblewrap.inside) if setup.layers.bubblewrap else python
    inner = [seen_python.program, "-s", "-S", "-P", f"{seen_python.jail}/start.py", "runner", str(theirs.fileno())]
    variables = environment(job["root"])
    command = inner
    if setup.layers.bubblewrap:
        folders = dict.fromkeys((python.prefix, python.jail, *languages.toolchain(program.language).folders))
        seen = [folder for folder in folders if not folder.startswith("/usr/")]
        command = bubblewrap.command(inner, variables, seen, _SCRATCH, proc=True)
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], env=variables, cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    theirs.close()
    limits = program.limits
    patience = 2 * limits.wall + (max(limits.wall, PACE * limits.compile_cpu) if job["compile"] else 0) + _SLACK
    try:
        send(ours.fileno(), job)
        return dict(Reader(ours.fileno(), _ANSWER_CAP).read(time.monotonic() + patience))
    except (OSError, EOFError, TimeoutError, FrameError) as error:
        return {"status": "infrastructure", "detail": f"the jail gave no answer ({type(error).__name__})"}
    finally:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
