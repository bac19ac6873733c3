"""The context inside which `import lmms_eval...` gives this package's own implementations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def multimodal_names(roots: Iterable[Path] = ()) -> Iterator[None]:
    """Inside, `import lmms_eval...` gives this package's own implementations; afterwards everything is as before.

    Args:
        roots: folders the user named; `lmms_eval.tasks.x.y` is looked for below them.
    """
    yield
