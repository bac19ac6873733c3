"""Pictures as models take them: whole, of a sane size, in RGB; anything else is an error or a note."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.media import Deferred, Media

MAX_PIXELS: Final = 178_956_970
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_PLAIN = ("RGB", "L")


def note_of(value: Any) -> str:
    """What is noteworthy about a picture before it is read: a mode that has to be converted, or nothing."""
    mode = getattr(value, "mode", None)
    return f"picture converted from {mode} to RGB" if mode is not None and mode not in _PLAIN else ""


def notes_of(media: Iterable[Media], max_pixels: int = MAX_PIXELS) -> str:
    """Notes about pictures that are at hand; those that are made when they are wanted were looked at by who says so.

    Raises:
        DataError: see `check_size`.
    """
    media = list(media)
    held = [medium for medium in media if medium.kind == "image" and not isinstance(medium.held, Deferred)]
    for medium in held:
        check_size(medium.held, f"image {medium.digest[:12]}", max_pixels)
    told = [*(medium.note for medium in media), *(note_of(medium.held) for medium in held)]
    return "; ".join(dict.fromkeys(filter(None, told)))


def check_size(value: Any, where: str, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse pictures without a pixel or with too many, before anything is decoded.

    Raises:
        DataError: see above.
    """
    size = getattr(value, "size", None)
    if not isinstance(size, tuple):
        return
    if 0 in size:
        raise DataError(Fault(where, f"a picture of {size[0]} x {size[1]} pixels", "at least one pixel"))
    if size[0] * size[1] > max_pixels:
        raise DataError(
            Fault(where, f"a picture of {size[0]} x {size[1]} pixels", f"at most {max_pixels} pixels",
                  "Scale it down in the task, or raise max_pixels.")
        )  # fmt: skip


def rgb(value: Any, where: str, max_pixels: int = MAX_PIXELS) -> Any:
    """The picture as an RGB PIL image.

    Args:
        value: a PIL image, an array [height, width(, channels)] of bytes, a path, encoded bytes, or a data set's
            {"bytes", "path"}.
        where: names the picture in errors.
        max_pixels: more are refused.

    Raises:
        DataError: missing, empty, too large, cut short, or not a picture.
    """
    image = _opened(value, where)
    check_size(image, where, max_pixels)
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            Fault(where, f"cannot be decoded: {error}", "a whole picture", "Fetch the file anew.")
        ) from error
    return image if image.mode == "RGB" else _converted(image, where)


def _opened(value: Any, where: str) -> Any:
    from PIL import Image, UnidentifiedImageError

    if isinstance(value, Image.Image):
        return value
    if isinstance(value, np.ndarray):
        return _of_array(value, where)
    if isinstance(value, dict) and (value.get("bytes") or value.get("path")):
        value = value.get("bytes") or value["path"]
    if not isinstance(value, (bytes, bytearray, str, Path)) or not value:
        found = "no picture (None)" if value is None else f"a {type(value).__name__}"
        raise DataError(Fault(where, found, "a PIL image, an array, a path or encoded bytes"))
    source = io.BytesIO(value) if isinstance(value, (bytes, bytearray)) else value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(source)
    except FileNotFoundError as error:
        raise DataError(Fault(where, f"the file '{value!s}' does not exist", "a picture")) from error
    except Image.DecompressionBombError as error:
        raise DataError(Fault(where, str(error), "a smaller picture")) from error
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(Fault(where, f"is not a picture that can be read: {error}", "an image file")) from error


def _of_array(value: np.ndarray[Any, Any], where: str) -> Any:
    from PIL import Image

    fits = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4))
    if value.dtype != np.uint8 or not fits or not value.size:
        found = f"an array of {value.dtype} {list(value.shape)}"
        raise DataError(Fault(where, found, "bytes [height, width] or [height, width, 3 or 4]"))
    return Image.fromarray(value)


def _converted(image: Any, where: str) -> Any:
    """The same picture in RGB; sixteen-bit grey is scaled, not clipped."""
    from PIL import Image

    if image.mode in _SIXTEEN_BITS:
        values = np.asarray(image, dtype=np.float64)
        if values.max() > 255 or image.mode != "I":
            values = values * (255.0 / 65535.0)
        return Image.fromarray(values.clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise DataError(Fault(where, "a picture of floats (mode F)", "integers", "Scale and convert it in the task."))
    return image.convert("RGB")
