"""Documents with and without their media: hooks for texts and scores get them without."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fusion_eval.harness.media import Media
from fusion_eval.harness.multimodal.visual import deferred, size_of

_MEDIA_FEATURES: Final = frozenset({"Image", "Audio", "Video"})
MEMORY: Final = 512 * 2**20


def media_columns(docs: Any) -> list[str]:
    """Columns that hold pictures, sounds or videos, or lists of them."""
    features = getattr(docs, "features", None)
    return [name for name, feature in features.items() if _is_media(feature)] if features else []


def _is_media(feature: Any) -> bool:
    if type(feature).__name__ in _MEDIA_FEATURES:
        return True
    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    return inner is not None and _is_media(inner)


def without_media(docs: Any) -> Any:
    """The documents without their media; of lists of documents, without PIL images at the top."""
    if hasattr(docs, "remove_columns"):
        columns = media_columns(docs)
        return docs.remove_columns(columns) if columns else docs
    return [{key: value for key, value in doc.items() if not _is_picture(value)} for doc in docs]


def own_copy(document: Any) -> Any:
    """A document that a hook may write into; pictures are shared."""
    if not isinstance(document, dict):
        return document
    return {key: value if _is_picture(value) else copy.deepcopy(value) for key, value in document.items()}


def _is_picture(value: Any) -> bool:
    from PIL import Image

    return isinstance(value, Image.Image) or (isinstance(value, list) and bool(value) and _is_picture(value[0]))


def call_hook(function: Callable[..., Any], document: Any, more: Any, exactly: bool = False) -> Any:
    """What a hook says of a document.

    Args:
        function: the hook.
        document: its first argument.
        more: its second one, given by position since its name varies; None for none. A hook that takes only one
            argument is called with the document.
        exactly: give `more` only to a function of exactly two parameters.
    """
    if more is None:
        return function(document)
    count = _parameters(function)
    takes = count is None or (count == 2 if exactly else count > 1)
    return function(document, more) if takes else function(document)


def _parameters(function: Callable[..., Any]) -> int | None:
    """How many arguments can be given by position; None where that is unknown or unlimited."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


class Gallery:
    """Media of one task: equal ones are held once, and beyond a limit of memory they are made anew when wanted.

    Args:
        make: document id -> its media.
        memory: bytes of pictures to keep.
    """

    def __init__(self, make: Callable[[int], Sequence[Media]], memory: int = MEMORY) -> None:
        self._make = make
        self._left = memory
        self._held: dict[Media, Media] = {}
        self._last: tuple[int, Sequence[Media]] = (-1, ())

    def held(self, doc_id: int, made: Sequence[Media]) -> list[Media]:
        """The media of a document that were just made, as they are to be kept."""
        new = {m for m in made if m not in self._held}
        size = sum(size_of(m) for m in new)
        if size > self._left:
            made = deferred(made, lambda: self._again(doc_id))
        else:
            self._left -= size
            self._held.update({m: m for m in new})
        return [self._held.get(m, m) for m in made]

    def _again(self, doc_id: int) -> Sequence[Media]:
        if self._last[0] != doc_id:
            self._last = (doc_id, self._make(doc_id))
        return self._last[1]


def column_of(document: Mapping[str, Any], name: str) -> Any:
    """A column that may be a path into nested mappings: `image`, or `visual.image`."""
    value: Any = document
    for part in [name] if name in document else name.split("."):
        value = value[part]
    return value
