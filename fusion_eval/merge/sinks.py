"""Where merges are written: safetensors shards, tensor by tensor, that appear whole or not at all.

A file's bytes are on the disk before it gets its name, and a folder's files before the folder does: what is found after
a loss of power is whole too.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fusion_eval.errors import Fault, OutputError
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.disk import reserve
from fusion_eval.merge.locks import lock_file, locked
from fusion_eval.merge.loop import Loop, stream
from fusion_eval.merge.shards import INDEX, Shard, index_text, plan_shards
from fusion_eval.merge.views import subset

SHARD_BYTES: Final = 5_000_000_000
_UNFINISHED = ".part"
_MOST_OPEN: Final = 100


class ShardSink:
    """Writes tensors to their places in safetensors shards; a shard gets its name when its last byte is written.

    Args:
        folder: an existing folder.
        shards: the shards to write, as planned by `plan_shards`.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._folder = folder
        self._home = {name: shard for shard in shards for name in shard.offsets}
        self._missing = {shard.file: shard.size - len(shard.header) for shard in shards}
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()
        for shard in shards:
            if not self._missing[shard.file]:
                self._finish(shard, self._descriptor(shard))

    def write(self, name: str, tensor: Tensor, start: int = 0) -> None:
        """Put a run of a tensor's elements in its place.

        Raises:
            OutputError: the place cannot be written, for instance since the disk is full.
        """
        self.put(name, tensor, start)
        self._count(self._home[name], tensor.numel() * tensor.dtype.itemsize)

    def open(self) -> bool:
        """Make every shard's file, unless there are very many."""
        unfinished = [shard for shard in {id(s): s for s in self._home.values()}.values() if self._missing[shard.file]]
        if len(unfinished) > _MOST_OPEN:
            return False
        for shard in unfinished:
            with self._reported(shard):
                self._descriptor(shard)
        return True

    def put(self, name: str, tensor: Tensor, start: int = 0) -> None:
        """As `write`, for a process that was forked after `open`; `wrote` tells the sink that opened.

        Raises:
            OutputError: the place cannot be written.
        """
        shard = self._home[name]
        values = tensor.detach().to("cpu").contiguous().reshape(-1)
        if not values.numel():
            return
        raw = memoryview(values.view(torch.uint8).numpy().data)
        with self._reported(shard):
            with self._lock:
                descriptor = self._descriptor(shard)
            _write_all(descriptor, raw, shard.offsets[name] + start * values.itemsize)

    def wrote(self, name: str) -> None:
        """Take notice that all of a tensor was put."""
        shard = self._home[name]
        self._count(shard, shard.sizes[name])

    def _count(self, shard: Shard, written: int) -> None:
        """So many bytes of a shard are there; the last ones finish it."""
        if not written:
            return
        with self._lock:
            self._missing[shard.file] -= written
            whole = not self._missing[shard.file]
        if whole:
            with self._reported(shard):
                self._finish(shard, self._open[shard.file])

    @contextmanager
    def _reported(self, shard: Shard) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(write_fault(self._folder / shard.file, error)) from error

    def close(self) -> None:
        """Remove what is unfinished."""
        for file, descriptor in self._open.items():
            os.close(descriptor)
            (self._folder / (file + _UNFINISHED)).unlink(missing_ok=True)
        self._open = {}

    def _descriptor(self, shard: Shard) -> int:
        if shard.file not in self._open:
            path = self._folder / (shard.file + _UNFINISHED)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            lock_file(descriptor, path)
            os.ftruncate(descriptor, 0)
            self._open[shard.file] = descriptor
            reserve(descriptor, shard.size)
            _write_all(descriptor, memoryview(shard.header), 0)
        return self._open[shard.file]

    def _finish(self, shard: Shard, descriptor: int) -> None:
        os.fsync(descriptor)
        with self._lock:
            del self._open[shard.file]
        os.close(descriptor)
        os.replace(self._folder / (shard.file + _UNFINISHED), self._folder / shard.file)


def save_checkpoint(
    checkpoint: Checkpoint,
    folder: str | os.PathLike[str],
    *,
    shard_bytes: int = SHARD_BYTES,
    rank: int = 0,
    world: int = 1,
    finish: Callable[[Path], None] | None = None,
    loop: Loop | None = None,
) -> Path:
    """Write a checkpoint as a folder of safetensors with Hugging Face's names, and return the folder.

    The folder appears whole or not at all. A merge that was killed is resumed at the first missing shard when it is
    started again with the same inputs and steps. Of `world` processes each calls this with its `rank` and writes
    shards of its own; the last one to end makes the folder appear.

    Args:
        checkpoint: what to write; read once.
        folder: the target, which may not exist yet (or be empty).
        shard_bytes: the size that a shard may have.
        rank: this process.
        world: how many processes write together.
        finish: called once with the complete folder under its temporary name, to add other files.
        loop: threads, memory and progress.

    Raises:
        OutputError: the target exists, cannot be written, is being written by another process, or the disk is full.
    """
    target = Path(folder).expanduser().absolute()
    shards, key = plan_shards(checkpoint, shard_bytes), checkpoint.key()
    if key is None and world > 1:
        raise OutputError(
            Fault(str(target), "a merge whose steps cannot be identified", "one process", "Save it with world=1.")
        )
    with _reported(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target, shared=world > 1):
            if rank and all(_is_written(target, shard) for shard in shards):
                return target  # the other ranks found all shards there
            _check_target(target)
            partial = _partial(target, shards, key)
            try:
                _write_shards(checkpoint, partial, shards[rank::world], loop)
                _complete(target, partial, shards, finish)
            except BaseException:
                _discard(partial, keep=key is not None)
                raise
    return target


@contextmanager
def new_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder that becomes the target at the end, or is removed where what is done in it fails.

    Raises:
        OutputError: the target exists, cannot be written, or is being written by another process.
    """
    target = Path(target).expanduser().absolute()
    with _reported(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target, shared=False):
            _check_target(target)
            partial = target.with_name(f".{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                yield partial
                flush(*partial.rglob("*"), partial)
                os.replace(partial, target)
                flush(target.parent)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise


def write_fault(path: Path, error: OSError) -> Fault:
    """What went wrong with writing, and what to do."""
    do = {
        errno.ENOSPC: "Free some space and start again: finished shards are kept.",
        errno.EDQUOT: "Free some of your quota and start again: finished shards are kept.",
        errno.EROFS: "Choose another folder.",
        errno.EACCES: "Choose another folder, or change its permissions.",
    }
    return Fault(str(path), f"cannot be written ({error.strerror or error})", do=do.get(error.errno or 0, ""))


@contextmanager
def _reported(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(write_fault(Path(error.filename or target), error)) from error


def _check_target(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        what = "a folder with files in it" if target.is_dir() else "a file"
        raise OutputError(Fault(str(target), f"exists: {what}", "a new folder", "Remove it or choose another name."))


def _partial(target: Path, shards: Sequence[Shard], key: str | None) -> Path:
    """The folder that becomes the target; what other merges left for the same target is removed."""
    digest = hashlib.sha256(repr((key, [(shard.file, shard.header) for shard in shards])).encode())
    partial = target.parent / f".{target.name}.{digest.hexdigest()[:16]}.partial"
    for other in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        if other != partial or key is None:
            shutil.rmtree(other)
    partial.mkdir(exist_ok=True)
    missing = sum(shard.size for shard in shards if not _is_written(partial, shard))
    free = shutil.disk_usage(partial).free
    if missing > free:
        _discard(partial, keep=key is not None)
        found, needed = f"{free / 1e9:.2f} GB are free", f"{missing / 1e9:.2f} GB"
        raise OutputError(Fault(str(target), found, needed, "Free some space or choose another place."))
    return partial


def _write_shards(checkpoint: Checkpoint, partial: Path, shards: Sequence[Shard], loop: Loop | None) -> None:
    missing = [shard for shard in shards if not _is_written(partial, shard)]
    with closing(ShardSink(partial, missing)) as sink:
        names = [name for shard in missing for name in shard.offsets]
        stream(subset(checkpoint, names), sink, loop=loop)


def _complete(target: Path, partial: Path, shards: Sequence[Shard], finish: Callable[[Path], None] | None) -> None:
    """Make the target appear, if all shards of all ranks are there and no other rank did it."""
    with locked(target.with_name(f"{target.name}.finish"), shared=False, wait=True):
        if not all(_is_written(partial, shard) for shard in shards):
            return
        if len(shards) > 1:
            (partial / INDEX).write_text(index_text(shards), encoding="utf-8")
        if finish is not None:
            finish(partial)
        written = {shard.file for shard in shards}
        flush(*(path for path in partial.rglob("*") if path.name not in written), partial)
        os.replace(partial, target)
        flush(target.parent)


def flush(*paths: Path) -> None:
    """Put files and folders on the disk, where the file system can be asked to."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # some file systems refuse folders
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _discard(partial: Path, *, keep: bool) -> None:
    """Remove the folder of a merge that failed, unless finished shards are to be kept for the next try."""
    if keep:
        with suppress(OSError):
            partial.rmdir()
    else:
        shutil.rmtree(partial, ignore_errors=True)


def _is_written(partial: Path, shard: Shard) -> bool:
    with suppress(OSError):
        return (partial / shard.file).stat().st_size == shard.size
    return False


def _write_all(descriptor: int, raw: memoryview, offset: int) -> None:
    done = 0
    while done < len(raw):
        done += os.pwrite(descriptor, raw[done:], offset + done)
