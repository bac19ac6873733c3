"""The one loop over tensors: several threads or processes read, compute and write, in bounded memory."""

from __future__ import annotations

import functools
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.helpers import THREAD_NAME as _NAME
from fusion_eval.merge.helpers import Helper, helpers, leave_if_alone, may_fork
from fusion_eval.merge.watched import bytes_bar

_Item = TypeVar("_Item")

_BATCH_BYTES: Final = 4 << 20  # small tensors are handed to a thread together, up to this size
_BATCH_NAMES: Final = 64
_SPARE_BYTES: Final = 128 << 20  # memory for other tensors beside the neediest one
_KEPT_BYTES: Final = 8 << 20  # more than the operands of a slice
_FORKED_BYTES: Final = 64 << 20  # from this size on, or this number of tensors, processes are worth their start
_FORKED_NAMES: Final = 2000


class Sink(Protocol):
    """Where merged tensors go. `write` is called from several threads."""

    def write(self, name: str, tensor: Tensor, start: int = 0) -> None:
        """Take a run of the tensor's elements, in its final dtype, that begins at element `start`."""


@runtime_checkable
class PlacedSink(Sink, Protocol):
    """A sink in which every tensor has its place from the start, so that forked processes may write to it."""

    def open(self) -> bool:
        """Make all places ready; False where there are too many."""

    def put(self, name: str, tensor: Tensor, start: int = 0) -> None:
        """As `write`, but the tensor counts as missing until `wrote` is called in the process that opened the sink."""

    def wrote(self, name: str) -> None:
        """Take notice that all of a tensor was put."""


@dataclass(frozen=True, slots=True)
class Loop:
    """How the loop runs; its results do not depend on it.

    Args:
        threads: how many tensors are worked on at a time, by threads or by processes; 0 means one per processor.
        progress: whether to show a bar with bytes per second on the error stream.
    """

    threads: int = 0
    progress: bool = False


def stream(checkpoint: Checkpoint, sink: Sink, *, rank: int = 0, world: int = 1, loop: Loop | None = None) -> None:
    """Write a checkpoint's tensors to a sink: the only loop over tensors. Ranks take disjoint names.

    Tensors are worked on side by side, each on one thread of torch, so the bits do not depend on the number of threads.
    The memory that tensors in work may need together is bounded by the neediest one and a little more. While a tensor
    is computed, the operating system is asked to read the next ones. Where a fork is safe and the sink allows it, each
    thread hands its tensors to a process.
    """
    loop = loop or Loop()
    batches = _batches(checkpoint, list(checkpoint)[rank::world])
    needs = [max(map(checkpoint.working_bytes, batch)) for batch in batches]
    gate = _Gate(max(needs, default=0) + _SPARE_BYTES)
    threads = min(loop.threads or _processors(), max(1, len(batches)))
    stopped = mmap.mmap(-1, 1)  # a byte that processes share
    keep_freed_memory()

    def work(batch: Sequence[str], need: int) -> int:
        with gate.room(need):
            if idle is None:
                _write(checkpoint, batch, sink.write, stopped)
            else:
                _delegate(idle, batch, sink)
        return sum(checkpoint.spec(name).nbytes for name in batch)

    with ExitStack() as stack:
        stack.enter_context(one_torch_thread())
        idle = stack.enter_context(_crew(checkpoint, sink, batches, threads, stopped))
        advance = stack.enter_context(_bar(loop.progress, checkpoint, batches))
        pool = ThreadPoolExecutor(threads, _NAME, initializer=torch.set_num_threads, initargs=(1,))
        try:
            running: set[Future[int]] = set()
            for batch, need in zip(batches, needs, strict=True):
                if len(running) >= threads + 2:
                    running = _reap(running, advance)
                for name in batch:
                    checkpoint.prefetch(name)
                running.add(pool.submit(work, batch, need))
            while running:
                running = _reap(running, advance)
        finally:
            stopped[0] = 1
            pool.shutdown(wait=True, cancel_futures=True)


def _write(
    checkpoint: Checkpoint, batch: Sequence[str], put: Callable[[str, Tensor, int], None], stopped: mmap.mmap
) -> bool:
    """Merge some tensors and put them in their places; False where it was stopped before the end."""
    with torch.no_grad():
        for name in batch:
            start = 0
            for piece in checkpoint.pieces(name):
                if stopped[0]:
                    return False
                put(name, piece, start)
                start += piece.numel()
    return True


@contextmanager
def _crew(
    checkpoint: Checkpoint, sink: Sink, batches: Sequence[Sequence[str]], count: int, stopped: mmap.mmap
) -> Iterator[queue.SimpleQueue[Helper] | None]:
    """Processes that merge batches of tensors, or None where threads have to."""
    sizes = [checkpoint.spec(name).nbytes for batch in batches for name in batch]
    worth = count > 1 and (sum(sizes) >= _FORKED_BYTES or len(sizes) >= _FORKED_NAMES)
    if not (worth and may_fork() and isinstance(sink, PlacedSink) and sink.open()):
        yield None
        return
    parent = os.getpid()

    def put(name: str, tensor: Tensor, start: int) -> None:
        leave_if_alone(parent)
        sink.put(name, tensor, start)

    def serve(batch: Sequence[str]) -> bool:
        return _write(checkpoint, batch, put, stopped)

    with helpers(serve, count) as made:
        idle: queue.SimpleQueue[Helper] = queue.SimpleQueue()
        for helper in made:
            idle.put(helper)
        yield idle


def _delegate(idle: queue.SimpleQueue[Helper], batch: Sequence[str], sink: Sink) -> None:
    """Have a process merge a batch."""
    assert isinstance(sink, PlacedSink)
    helper = idle.get()
    try:
        whole = helper(batch)
    finally:
        idle.put(helper)
    if whole:
        for name in batch:
            sink.wrote(name)


def _processors() -> int:
    """How many processors this process may use; not every system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(checkpoint: Checkpoint, names: Sequence[str]) -> list[list[str]]:
    """The names in order, small tensors together; tensors that would keep one thread busy at the end come first."""
    sizes = {name: checkpoint.spec(name).nbytes for name in names}
    large = sum(sizes.values()) // 16
    batches: list[list[str]] = []
    filled = 0
    for name in sorted(names, key=lambda name: sizes[name] < max(large, _BATCH_BYTES)):
        if not batches or filled + sizes[name] > _BATCH_BYTES or len(batches[-1]) >= _BATCH_NAMES:
            batches.append([])
            filled = 0
        batches[-1].append(name)
        filled += sizes[name]
    return batches


def _reap(running: set[Future[int]], advance: Callable[[int], object]) -> set[Future[int]]:
    """The futures that still run, after at least one has ended; raises what a thread has raised."""
    done, rest = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        advance(future.result())
    return rest


class _Gate:
    """Bounds the memory of what runs side by side; a need above the limit runs alone. First come, first served."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._turn, self._freed = threading.Lock(), threading.Condition()

    @contextmanager
    def room(self, need: int) -> Iterator[None]:
        """Hold `need` bytes."""
        with self._turn, self._freed:
            self._freed.wait_for(lambda: self._used == 0 or self._used + need <= self._limit)
            self._used += need
        try:
            yield
        finally:
            with self._freed:
                self._used -= need
                self._freed.notify()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for the operations of torch: for work on slices, which threads would only hand around.

    The number of threads is restored at the end, also after `torch.set_num_threads` in another thread.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def keep_freed_memory() -> None:
    """Have the C library keep what slices free for the next ones, where it can.

    Handing memory back after each operation and faulting it in again costs more than the operation. glibc keeps as much
    as twice the largest block that it ever mapped and freed.
    """
    torch.empty(_KEPT_BYTES, dtype=torch.uint8)


def ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items, each computed by another thread while the one before it is used.

    In a thread of the loop, which has its share of the processor, and on a single processor, they come as they are.
    """
    keep_freed_memory()
    if _processors() == 1 or threading.current_thread().name.startswith(_NAME):
        yield from items
        return
    found: queue.Queue[tuple[bool, Any]] = queue.Queue(1)
    stopped = threading.Event()
    thread = threading.Thread(target=_produce, args=(items, found, stopped), name=f"{_NAME} ahead", daemon=True)
    with one_torch_thread():
        thread.start()
        try:
            while True:
                more, item = found.get()
                if not more:
                    break
                yield item
            if item is not None:
                raise item
        finally:
            stopped.set()
            while thread.is_alive():
                with suppress(queue.Empty):
                    found.get(timeout=0.01)


def _produce(items: Iterable[Any], found: queue.Queue[tuple[bool, Any]], stopped: threading.Event) -> None:
    """Hand on (True, item) for each item, then (False, the error or None)."""
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            for item in items:
                found.put((True, item))
                if stopped.is_set():
                    return
    except BaseException as error:  # noqa: BLE001 - raised again where the items are used
        found.put((False, error))
    else:
        found.put((False, None))


@contextmanager
def _bar(shown: bool, checkpoint: Checkpoint, batches: Sequence[Sequence[str]]) -> Iterator[Callable[[int], object]]:
    if not shown:
        yield lambda done: None
        return
    with bytes_bar(sum(checkpoint.spec(name).nbytes for batch in batches for name in batch)) as update:
        yield update
