"""Compiles and runs one program of another language; its processes may start processes, and all of them end with it."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from fusion_eval.sandbox.jail import confine, crowd, landlock, processes, scratch, seccomp, watch
from fusion_eval.sandbox.jail.wire import Reader, send

_PR_SET_CHILD_SUBREAPER = 36
_JOB_CAP = 64 << 20
_STEP = 0.05
_ERROR_BYTES = 64 << 10
_DESCRIPTORS, _FILE_SIZE = 256, 64 << 20
_COMPILER_MEMORY = 3 << 30
_EARLIEST = 3.0  # seconds that a virtual machine may take to start before it counts as waiting
PACE = 10  # seconds that a compiler may take for each second of CPU time it may use


@dataclass(slots=True)
class _Progress:
    """Of a running program: when it began, what its predecessors used, how many tasks it had at once."""

    limits: dict[str, float]
    started: float
    cpu_before: float
    most_tasks: int = 0


def main(fd: int) -> None:
    """Takes one job from the host and answers with its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    confine.die_with_parent()
    confine.LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    job = Reader(fd, _JOB_CAP).read()
    root, uid = job["root"], job["uid"]
    scratch.tidy(root, {"work": uid})
    folder = os.path.join(root, "work")
    with open(os.path.join(folder, job["source"]), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(job["text"])
    os.chmod(file.name, 0o644)
    if job["shares_threads"]:
        job["threads"] += crowd.tasks_of_user()
    outcome = _phases(job, folder)
    if not processes.end_all(os.getpid(), uid):
        outcome = {"status": "infrastructure", "detail": "processes of the program could not be ended"}
    send(fd, outcome)


def _phases(job: dict[str, Any], folder: str) -> dict[str, Any]:
    limits = job["limits"]
    if job["compile"]:
        memory = max(limits["memory"], _COMPILER_MEMORY)
        cpu = limits["compile_cpu"]
        wall = max(limits["wall"], PACE * cpu)
        built = _run(job, job["compile"], "", {**limits, "cpu": cpu, "wall": wall, "memory": memory}, folder)
        if built["status"] != "passed":
            said = built["stderr"] or built["stdout"]
            kind = "timeout" if built["status"] == "timeout" else "failed"
            return {**built, "status": kind, "detail": f"does not compile: {built.get('detail', '')} {said}"}
    return _run(job, job["run"], job["stdin"], limits, folder)


def _run(job: dict[str, Any], words: list[str], stdin: str, limits: dict[str, float], folder: str) -> dict[str, Any]:
    """Runs one command to its end, or to the end of a budget."""
    source = _input(job["root"], stdin)
    out, err = os.pipe(), os.pipe()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    progress = _Progress(limits, time.monotonic(), _seconds(before))
    pid = os.fork()
    if pid == 0:
        _become(job, words, limits, folder, (source, out[1], err[1]))
    for fd in (source, out[1], err[1]):
        os.close(fd)
    drains = [watch.Drain(out[0], int(limits["output"])), watch.Drain(err[0], _ERROR_BYTES)]
    outcome = _follow(pid, drains, progress)
    if outcome is None:
        outcome = _ended(os.waitpid(pid, 0)[1])
    processes.end_all(os.getpid(), job["uid"])
    _finish(drains)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = _seconds(usage) - _seconds(before)
    if outcome["status"] == "killed" and cpu >= limits["cpu"]:  # by the kernel, ahead of the watch
        outcome = {"status": "timeout", "detail": f"used {cpu:.2f} s of CPU time of {limits['cpu']:g} s"}
    outcome = {
        "signal": 0,
        **outcome,
        "cpu": cpu,
        "wall": time.monotonic() - progress.started,
        "tasks": progress.most_tasks,
        "memory": usage.ru_maxrss * 1024,
        "stdout": drains[0].kept.decode(errors="replace"),
        "stderr": drains[1].kept.decode(errors="replace"),
        "truncated": any(drain.total > len(drain.kept) for drain in drains),
    }
    return {**outcome, "crowded": crowd.spoilt(outcome, outcome)}


def _seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _input(root: str, text: str) -> int:
    path = os.path.join(root, "stdin")
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    fd = os.open(path, os.O_RDONLY)
    os.unlink(path)
    return fd


def _become(
    job: dict[str, Any], words: list[str], limits: dict[str, float], folder: str, streams: tuple[int, int, int]
) -> NoReturn:
    """Locks this process in, with the right to start others, and becomes the command."""
    try:
        os.setsid()
        confine.silence(streams)
        confine.close_all_but([])
        rules = None
        if job["landlock"]:
            rules = landlock.ruleset(confine.LIBC, job["readable"], [folder, "/dev/null"])
        if rules is not None:
            landlock.runnable(confine.LIBC, rules, folder)
        if job["uid"]:
            confine.become(job["uid"], job["search"], inherit=True)
        os.chdir(folder)
        confine.limit(
            [
                (resource.RLIMIT_CPU, int(limits["cpu"]) + 2),
                (resource.RLIMIT_FSIZE, _FILE_SIZE),
                (resource.RLIMIT_NOFILE, _DESCRIPTORS),
                (resource.RLIMIT_NPROC, job["threads"]),
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_MEMLOCK, 0),
            ]
        )
        if rules is not None:
            landlock.restrict(confine.LIBC, rules)
            os.close(rules)
        if job["seccomp"]:
            seccomp.install(confine.LIBC, "common")
            seccomp.install(confine.LIBC, "tree")
        os.execve(words[0], words, {**job["environment"], "HOME": folder, "TMPDIR": folder})
    except BaseException as error:  # noqa: BLE001 - nothing may run that is not locked in
        os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
    finally:
        os._exit(97)


def _follow(pid: int, drains: list[watch.Drain], progress: _Progress) -> dict[str, Any] | None:
    """Reads what the program says until it ends (None) or has used up a budget."""
    next_look = progress.started + 2 * _STEP
    open_fds = {drain.fd: drain for drain in drains}
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        ready = select.select(list(open_fds), [], [], _STEP)[0] if open_fds else []
        for fd in ready:
            if not open_fds[fd].pull():
                del open_fds[fd]
        if not open_fds:
            time.sleep(0.002)
        now = time.monotonic()
        if now > next_look:
            progress.started += watch.lost(now - next_look)
            if (outcome := _over(progress, now)) is not None:
                return outcome
            next_look = now + 2 * _STEP
    return None


def _over(progress: _Progress, now: float) -> dict[str, Any] | None:
    tree, limits = processes.below(os.getpid()), progress.limits
    progress.most_tasks = max(progress.most_tasks, tree.tasks)
    used = tree.cpu + _seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - progress.cpu_before
    outcome = watch.out_of_time(limits["cpu"], limits["wall"], now - progress.started, used, _EARLIEST)
    if outcome is not None:
        return outcome
    if tree.memory > limits["memory"]:
        return {"status": "out_of_memory", "detail": f"{tree.memory >> 20} MiB resident"}
    return None


def _finish(drains: list[watch.Drain]) -> None:
    """Takes what was written before the end."""
    for drain in drains:
        while select.select([drain.fd], [], [], 0)[0] and drain.pull():
            pass
        os.close(drain.fd)


def _ended(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        kind = "timeout" if number == signal.SIGXCPU else "killed"
        return {"status": kind, "signal": number, "detail": f"ended by signal {number}"}
    code = os.WEXITSTATUS(status)
    return {"status": "passed" if code == 0 else "failed", "detail": f"exit code {code}" if code else ""}
