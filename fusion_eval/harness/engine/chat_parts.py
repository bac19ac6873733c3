"""Conversations as the messages of OpenAI-compatible chats: pictures as PNG data URLs, sounds as WAV."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import numpy as np

from fusion_eval.errors import DataError, EvaluationError, Fault
from fusion_eval.harness.engine.vision_picture import MAX_PIXELS, rgb
from fusion_eval.harness.media import Conversation, Media

Message = dict[str, Any]


def messages_of(conversation: Conversation, name: str, max_pixels: int = MAX_PIXELS) -> list[Message]:
    """Turns as messages; one of text alone has a string for its content.

    Raises:
        DataError: a picture or a sound that cannot be read.
        EvaluationError: a video, for which the protocol has no part.
    """
    return [
        {"role": turn.role, "content": turn.text}
        if all(isinstance(part, str) for part in turn.parts)
        else {"role": turn.role, "content": [_part(part, name, max_pixels) for part in turn.parts]}
        for turn in conversation.turns
    ]


def _part(part: str | Media, name: str, max_pixels: int) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    where = f"{part.kind} {part.digest[:12]}"
    if part.kind == "image":
        return {"type": "image_url", "image_url": {"url": png_url(rgb(part.value, where, max_pixels))}}
    if part.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": wav(part.value, where), "format": "wav"}}
    raise EvaluationError(
        Fault(f"server model '{name}'", "is asked about a video, which chats have no part for", "pictures or sounds",
              "Let doc_to_visual return frames as pictures, or use engine: transformers.")
    )  # fmt: skip


def png_url(image: Any) -> str:
    """A picture as a data URL, without loss."""
    target = io.BytesIO()
    image.save(target, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode()


def wav(sound: Any, where: str) -> str:
    """A sound {"array" [samples] or [samples, channels] between -1 and 1, "sampling_rate"} as 16-bit WAV in base64.

    Raises:
        DataError: anything else.
    """
    values = np.asarray(sound["array"], dtype=np.float64) if isinstance(sound, dict) and "array" in sound else None
    if values is None or values.ndim not in (1, 2) or not values.size or not np.isfinite(values).all():
        raise DataError(Fault(where, f"a {type(sound).__name__}", '{"array": finite samples, "sampling_rate": rate}'))
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1 if values.ndim == 1 else values.shape[1])
        file.setsampwidth(2)
        file.setframerate(int(sound["sampling_rate"]))
        file.writeframes((values.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return base64.b64encode(target.getvalue()).decode()
