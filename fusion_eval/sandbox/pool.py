"""Shares jobs among sandbox servers from one thread, replaces servers that die, repeats what neighbours spoilt."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusion_eval.sandbox.worker import Setup, Worker

_DEPTH = 2  # jobs a server has at hand, so that it never waits for the host
_SLACK = 60.0
_LOST: dict[str, Any] = {"status": "infrastructure", "detail": "the sandbox server ended twice on this program"}

Done = Callable[[int, dict[str, Any]], None]
Jobs = Sequence[dict[str, Any]] | Mapping[int, dict[str, Any]]
Lost = Callable[[int], None]


class Pool:
    """Sandbox servers and the jobs of one run at a time."""

    def __init__(self, workers: int, setup: Setup) -> None:
        self._setup = setup
        self.workers: list[Worker] = []
        try:
            for slot in range(workers):
                self.workers.append(Worker(slot, setup))
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Sequence[dict[str, Any]], done: Done) -> None:
        """Calls `done` with each job's number and outcome, in the order in which they end."""
        spoilt: list[int] = []

        def first(index: int, outcome: dict[str, Any]) -> None:
            if outcome.get("starved") or outcome.get("crowded"):
                spoilt.append(index)
            else:
                done(index, outcome)

        self._drive(jobs, deque(range(len(jobs))), self.workers, first, spoilt.append)
        for index in spoilt:
            alone = {index: {**jobs[index], "alone": True}}
            self._drive(alone, deque([index]), self.workers[:1], done, lambda index: done(index, dict(_LOST)))

    def _drive(self, jobs: Jobs, waiting: deque[int], workers: list[Worker], done: Done, lost: Lost) -> None:
        while waiting or any(worker.in_flight for worker in workers):
            for worker in workers:
                self._feed(worker, jobs, waiting)
            for worker in self._ready(workers):
                try:
                    for index, outcome in worker.answers(_patience(jobs, worker)):
                        done(index, outcome)
                except EOFError:
                    self._replace(worker, waiting, lost)
            for worker in list(workers):
                if time.monotonic() > worker.deadline:
                    self._replace(worker, waiting, lost)
            workers = [self.workers[worker.slot] for worker in workers]

    def _feed(self, worker: Worker, jobs: Jobs, waiting: deque[int]) -> None:
        while waiting and len(worker.in_flight) < _DEPTH:
            index = waiting.popleft()
            worker.post(index, jobs[index], _seconds(jobs[index]))

    def _ready(self, workers: list[Worker]) -> list[Worker]:
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                if worker.in_flight:
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.wants_to_write else 0)
                    selector.register(worker.socket, events, worker)
            found = selector.select(1.0)
        for key, events in found:
            if events & selectors.EVENT_WRITE:
                key.data.flush()
        return [key.data for key, events in found if events & selectors.EVENT_READ]

    def _replace(self, worker: Worker, waiting: deque[int], lost: Lost) -> None:
        """Starts a fresh server; the job that was running is lost, those behind it are as if never sent."""
        worker.close()
        self.workers[worker.slot] = Worker(worker.slot, self._setup)
        if worker.in_flight:
            lost(worker.in_flight.popleft())
        waiting.extendleft(reversed(worker.in_flight))

    def close(self) -> None:
        """Ends every server."""
        for worker in self.workers:
            worker.close()
        self.workers = []


def _seconds(job: dict[str, Any]) -> float:
    """How long a server may stay silent over a job: both modes one after the other, and some."""
    return 2 * float(job["limits"]["wall"]) + _SLACK


def _patience(jobs: Jobs, worker: Worker) -> float:
    return max((_seconds(jobs[index]) for index in worker.in_flight), default=0.0)
