"""From what hooks return (pictures, paths, bytes, arrays, frames, sounds) to `Media` that are told apart by content."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusion_eval.errors import DataError, Fault, missing_dependency
from fusion_eval.harness.media import Deferred, Kind, Media, digest_of
from fusion_eval.harness.multimodal.sound import sound_of

_SUFFIXES: Final[Mapping[str, Kind]] = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm"), "image"),
    **dict.fromkeys((".wav", ".mp3", ".m4a", ".aac", ".flac", ".ogg", ".opus"), "audio"),
    **dict.fromkeys((".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v"), "video"),
}  # fmt: skip
_SAME: Final = ("RGB", "L", "P", "1", "RGBA", "LA", "PA", "RGBX")
_WIDE_MODES: Final = ("I", "F")
_CONTENT: Final = ("url", "image", "image_url", "video", "video_url", "audio", "input_audio", "path", "bytes", "data")


def media_list(value: Any, where: str = "doc_to_visual") -> list[Media]:
    """The media of a hook's return value: a list of them, one alone, or none.

    Args:
        value: None, one thing, or a sequence; a list within it is a video given by its frames.
        where: for messages.

    Raises:
        DataError: something that is no picture, video or sound, or a file that cannot be read.
        MissingDependencyError: a package that reads it is not installed.
    """
    if value is None:
        return []
    items = value if isinstance(value, (list, tuple)) else [value]
    return [media_of(item, f"{where}[{i}]") for i, item in enumerate(items) if item is not None]


def media_of(item: Any, where: str, kind: Kind | None = None) -> Media:
    """One picture, video or sound.

    Args:
        item: a PIL image, an array, a path, a data URL, bytes, a mapping, or a list of frames.
        where: for messages.
        kind: what it is, where that is known from elsewhere.
    """
    from PIL import Image

    if isinstance(item, Image.Image):
        return picture(item, where)
    if isinstance(item, Mapping):
        return _of_mapping(item, where, kind)
    if isinstance(item, (str, Path)):
        return _of_name(str(item), where, kind)
    if isinstance(item, (bytes, bytearray)):
        return sound_of(bytes(item), where) if kind == "audio" else picture(_opened(io.BytesIO(item), where), where)
    if isinstance(item, (list, tuple)):
        return _of_frames([media_of(frame, f"{where}, frame {i}") for i, frame in enumerate(item)], where)
    if kind == "audio":
        return sound_of(item, where)
    if isinstance(item, np.ndarray) or type(item).__name__ == "Tensor":
        return _of_array(np.asarray(item), where)
    if type(item).__name__ == "AudioDecoder":
        return sound_of(item, where)
    if type(item).__name__ in ("VideoDecoder", "VideoReader"):
        return _of_array(_frames_of_decoder(item), where)
    raise DataError(
        Fault(where, f"gives a {type(item).__name__}", "a PIL image, a path, bytes, an array, a mapping with 'path', "
              "'bytes' or 'array', or a list of frames")
    )  # fmt: skip


def picture(image: Any, where: str) -> Media:
    """A picture in RGB, read to its end, with the digest of its pixels.

    Raises:
        DataError: no pixels, a file that ends too early, or a mode whose values do not fit 8 bits.
    """
    if 0 in image.size:
        raise DataError(Fault(where, f"the picture has {image.size[0]} x {image.size[1]} pixels", "at least one pixel"))
    if image.mode.partition(";")[0] in _WIDE_MODES:
        raise DataError(
            Fault(where, f"the picture has the mode {image.mode}", "8 bits per channel", "Scale it in doc_to_visual.")
        )
    try:
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        content = rgb.tobytes()
    except (OSError, ValueError, SyntaxError) as error:
        name = getattr(image, "filename", "") or "the picture"
        raise DataError(Fault(where, f"{name} cannot be read: {error}", "a whole picture file")) from error
    return Media("image", digest_of(content, rgb.size), rgb, _lost(image))


def _lost(image: Any) -> str:
    """What a picture loses in RGB: what shines through it, or colors of another kind; nothing for most."""
    if image.mode in ("RGBA", "LA", "PA"):
        clear = image.getchannel("A").getextrema()[0] < 255
    else:
        clear = "transparency" in image.info and image.mode != "RGB"
    if not clear and image.mode in _SAME:
        return ""
    return f"picture converted from {image.mode} to RGB" + (", its transparency left out" if clear else "")


def _opened(source: Any, where: str) -> Any:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(source)
    except FileNotFoundError as error:
        raise DataError(Fault(where, f"the file {source} does not exist", "a picture")) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            Fault(where, f"the picture is huge: {error}", f"at most {Image.MAX_IMAGE_PIXELS} pixels",
                  "Make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS in doc_to_visual and open it there.")
        ) from error  # fmt: skip
    except OSError as error:
        raise DataError(Fault(where, f"is no picture: {error}", "a picture file")) from error


def _of_name(name: str, where: str, kind: Kind | None) -> Media:
    if name.startswith("data:"):
        head, _, body = name.partition(",")
        return media_of(base64.b64decode(body), where, kind or _kind_of_type(head[5:].partition(";")[0]))
    if "://" in name and not name.startswith("file://"):
        raise DataError(Fault(where, f"{name} lies elsewhere", "a local file", "Download it first."))
    path = Path(name.removeprefix("file://")).expanduser()
    kind = kind or _SUFFIXES.get(path.suffix.lower())
    if path.is_dir():
        return _of_frames([media_of(file, where, "image") for file in sorted(path.iterdir())], where)
    if not path.is_file():
        raise DataError(Fault(where, f"the file {path} does not exist", f"{_article(kind)} file"))
    if kind == "audio":
        return sound_of(path, where)
    if kind == "video":
        return Media("video", _file_digest(path), str(path))
    return picture(_opened(path, where), where)


def _article(kind: Kind | None) -> str:
    return {"audio": "a sound", "video": "a video"}.get(kind or "", "a picture")


def _kind_of_type(name: str) -> Kind | None:
    known: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}
    return known.get(name.partition("/")[0])


def _file_digest(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def _of_mapping(item: Mapping[str, Any], where: str, kind: Kind | None) -> Media:
    """A column of a data set in its stored form, a sound, or a part of a message."""
    said = item.get("type")
    kind = kind or (said if said in ("image", "video", "audio") else None)
    if "array" in item:
        return sound_of(item, where)
    if "video_start" in item or "video_end" in item:
        clip = media_of(item.get("url") or item.get("path"), where, "video")
        span = (item.get("video_start"), item.get("video_end"))
        return Media("video", digest_of(clip.digest.encode(), span), {**item, "path": clip.value})
    for key in _CONTENT:
        value = item.get(key)
        if value is not None:
            return media_of(value, where, kind or _kind_of_key(key))
    raise DataError(
        Fault(where, f"gives a mapping with {sorted(map(str, item))}", "'bytes', 'path', 'url', 'image' or 'array'")
    )


def _kind_of_key(key: str) -> Kind | None:
    named: dict[str, Kind] = {"image": "image", "video": "video", "audio": "audio"}
    return next((kind for name, kind in named.items() if name in key), None)


def _of_array(array: np.ndarray[Any, Any], where: str) -> Media:
    """A picture from [height, width] or [height, width, channels]; a video from [frames, ...]."""
    from PIL import Image

    if array.ndim == 4:
        return _of_frames([_of_array(frame, f"{where}, frame {i}") for i, frame in enumerate(array)], where)
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if not fits or array.dtype != np.uint8 or 0 in array.shape:
        raise DataError(
            Fault(where, f"gives an array {array.dtype} {list(array.shape)}",
                  "uint8 [height, width], [height, width, 3 or 4], or [frames, height, width, 3]")
        )  # fmt: skip
    return picture(Image.fromarray(np.ascontiguousarray(array)), where)


def _of_frames(frames: Sequence[Media], where: str) -> Media:
    if not frames:
        raise DataError(Fault(where, "a video without frames", "at least one frame"))
    return Media("video", digest_of("".join(f.digest for f in frames).encode(), len(frames)), [f.value for f in frames])


def _frames_of_decoder(decoder: Any) -> np.ndarray[Any, Any]:
    """All frames [frames, height, width, 3] of a decoder of torchcodec or torchvision."""
    if type(decoder).__name__ == "VideoDecoder":
        return np.asarray(decoder[:]).transpose(0, 2, 3, 1)
    return np.stack([np.asarray(frame["data"]).transpose(1, 2, 0) for frame in decoder])


def video_frames(path: str | Path, count: int, where: str = "video") -> list[Any]:
    """Frames of a video at even distances, as PIL images.

    Args:
        path: the file.
        count: how many; all where the video has no more.
        where: for messages.

    Raises:
        DataError: no video.
        MissingDependencyError: none of the packages that decode videos is installed.
    """
    from PIL import Image

    for read in (_read_pyav, _read_opencv):
        try:
            frames = read(str(path), count)
        except ImportError:
            continue
        if not frames:
            raise DataError(Fault(where, f"{path} has no frames that can be read", "a video file"))
        return [Image.fromarray(frame) for frame in frames]
    raise missing_dependency("av", "multimodal", f"{where}: decoding {path} (PyAV or OpenCV)")


def sampled(medium: Media, count: int) -> Media:
    """A video file as the given number of its frames, which are read when they are wanted; others as they are."""
    if medium.kind != "video" or not isinstance(medium.held, str):
        return medium
    path = medium.held
    return Media("video", digest_of(medium.digest.encode(), count), Deferred(lambda: video_frames(path, count)))


def _picks(total: int, count: int) -> set[int]:
    """Places of frames at even distances, the first and the last among them."""
    return {round(place) for place in np.linspace(0, total - 1, min(count, total))} if total else set()


def _read_pyav(path: str, count: int) -> list[Any]:
    """The frames that are picked; the others are decoded and let go, so that a long video needs no memory."""
    import av

    try:
        with av.open(path) as container:
            total = sum(1 for _ in container.decode(video=0))
        picks = _picks(total, count)
        with av.open(path) as container:
            frames = enumerate(container.decode(video=0))
            return [frame.to_ndarray(format="rgb24") for place, frame in frames if place in picks]
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(Fault(path, f"cannot be decoded: {error}", "a video file")) from error


def _read_opencv(path: str, count: int) -> list[Any]:
    """The frames that are picked."""
    import cv2

    capture = cv2.VideoCapture(path)
    total = 0
    while capture.grab():
        total += 1
    capture.release()
    picks = _picks(total, count)
    capture = cv2.VideoCapture(path)
    frames: list[Any] = []
    try:
        for place in range(total):
            if capture.grab() and place in picks:
                frames.append(cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB))
    finally:
        capture.release()
    return frames


def size_of(media: Media) -> int:
    """Bytes that the content takes in memory."""
    if isinstance(media.held, Deferred):
        return 0
    held = media.held if isinstance(media.held, list) else [media.held]
    return sum(_bytes(item) for item in held)


def _bytes(item: Any) -> int:
    if isinstance(item, Mapping):
        return int(getattr(item.get("array"), "nbytes", 0))
    size = getattr(item, "size", None)
    return 3 * size[0] * size[1] if isinstance(size, tuple) else 0


def deferred(media: Iterable[Media], make: Any) -> list[Media]:
    """The same media without their content: `make()` gives all of it again."""
    return [Media(m.kind, m.digest, Deferred(lambda i=i: make()[i].value), m.note) for i, m in enumerate(media)]  # type: ignore[misc]
