"""A checkpoint whose reading is shown as a progress bar, for consumers that have none of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.views import View


class Watched(View):
    """The same tensors; bytes are reported as they are read.

    Args:
        inner: the checkpoint.
        seen: called with a number of bytes, from several threads.
    """

    def __init__(self, inner: Checkpoint, seen: Callable[[int], object]) -> None:
        super().__init__(inner, "watched")
        self._seen = seen

    @property
    def source(self) -> str:
        """The watched checkpoint's."""
        return self._inner.source

    def key(self) -> str | None:
        """The watched checkpoint's."""
        return self._inner.key()

    def read(self, name: str) -> Tensor:
        """The tensor."""
        tensor = self._inner.read(name)
        self._seen(tensor.nbytes)
        return tensor

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The tensor's pieces."""
        for piece in self._inner.pieces(name):
            yield piece
            self._seen(piece.nbytes)

    def working_bytes(self, name: str) -> int:
        """What the watched checkpoint needs."""
        return self._inner.working_bytes(name)


@contextmanager
def watched(checkpoint: Checkpoint, *, shown: bool) -> Iterator[Checkpoint]:
    """The checkpoint, with a bar of bytes per second on the error stream while it is read, if it is to be shown."""
    if not shown:
        yield checkpoint
        return
    with bytes_bar(sum(checkpoint.spec(name).nbytes for name in checkpoint)) as update:
        yield Watched(checkpoint, update)


@contextmanager
def bytes_bar(total: int) -> Iterator[Callable[[int], object]]:
    """A bar of bytes per second on the error stream, which is told how many more were done."""
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # a thread that watched over it would keep later merges from forking

    with Bar(total=total, desc="merge", unit="B", unit_scale=True, leave=False) as bar:
        yield bar.update
