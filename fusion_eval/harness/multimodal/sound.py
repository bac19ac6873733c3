"""Sounds: from arrays, files and decoders to `Media` whose value is `{"array", "sampling_rate"}`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusion_eval.errors import DataError, Fault, missing_dependency
from fusion_eval.harness.media import Media, digest_of


def sound_of(item: Any, where: str) -> Media:
    """A sound with the digest of its samples.

    Args:
        item: {"array", "sampling_rate"}, a decoder of `datasets`, a file, or a file's bytes.
        where: for messages.

    Raises:
        DataError: no samples, or no sampling rate.
    """
    rate: Any
    if isinstance(item, (str, Path)):
        array, rate = _read(str(item), where)
    elif isinstance(item, bytes):
        array, rate = _read(io.BytesIO(item), where)
    elif isinstance(item, Mapping):
        array, rate = np.asarray(item["array"]), item.get("sampling_rate") or item.get("sample_rate")
    else:
        samples = item.get_all_samples()
        array, rate = np.asarray(samples.data).squeeze(), samples.sample_rate
    if array.size == 0 or not rate:
        raise DataError(Fault(where, f"a sound of {array.size} samples at {rate} per second", "samples and their rate"))
    content = np.ascontiguousarray(array)
    digest = digest_of(content.tobytes(), content.dtype, content.shape, int(rate))
    return Media("audio", digest, {"array": array, "sampling_rate": int(rate)})


def _read(source: Any, where: str) -> tuple[np.ndarray[Any, Any], int]:
    """Samples in [-1, 1] and their rate; .wav files without any package but SciPy."""
    try:
        import soundfile
    except ImportError:
        return _read_wave(source, where)
    try:
        array, rate = soundfile.read(source, dtype="float32")
    except (RuntimeError, OSError) as error:
        raise DataError(Fault(where, f"is no sound: {error}", "a sound file")) from error
    return array, int(rate)


def _read_wave(source: Any, where: str) -> tuple[np.ndarray[Any, Any], int]:
    from scipy.io import wavfile

    try:
        rate, array = wavfile.read(source)
    except ValueError as error:
        raise missing_dependency("soundfile", "multimodal", f"{where}: reading {source}") from error
    if np.issubdtype(array.dtype, np.integer):
        array = (array / np.iinfo(array.dtype).max).astype(np.float32)
    return array, int(rate)
