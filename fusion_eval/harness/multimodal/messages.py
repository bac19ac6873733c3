"""`doc_to_messages`: turns in the form of chat servers, with their media, as a `Conversation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.media import Conversation, Kind, Media, Turn
from fusion_eval.harness.multimodal.visual import media_of

_KINDS: Final[Mapping[str, Kind]] = {
    "image": "image", "image_url": "image", "input_image": "image", "video": "video", "video_url": "video",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
}  # fmt: skip


def conversation_of(messages: Any) -> Conversation:
    """The conversation of a hook's messages.

    Args:
        messages: turns {"role", "content"}, the content a text or a list of parts: {"type": "text", "text"}, and
            {"type": "image", "url" or "image"} or {"type": "image_url", "image_url": {"url"}}; video, audio likewise.

    Raises:
        DataError: another shape.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise DataError(Fault("doc_to_messages", f"gives {_shown(messages)}", "a list of turns with role and content"))
    return Conversation(tuple(_turn(message, i) for i, message in enumerate(messages)))


def _turn(message: Any, number: int) -> Turn:
    where = f"doc_to_messages, turn {number}"
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise DataError(Fault(where, f"is {_shown(message)}", "a mapping with role and content"))
    content = message["content"]
    if isinstance(content, str):
        return Turn(str(message["role"]), (content,))
    if not isinstance(content, (list, tuple)):
        raise DataError(Fault(where, f"the content is {_shown(content)}", "a text or a list of parts"))
    return Turn(str(message["role"]), tuple(_part(part, f"{where}, part {i}") for i, part in enumerate(content)))


def _part(part: Any, where: str) -> str | Media:
    if isinstance(part, str):
        return part
    kind = str(part.get("type")) if isinstance(part, Mapping) else ""
    if kind in ("text", "input_text"):
        return str(part["text"])
    if kind not in _KINDS:
        raise DataError(Fault(where, f"is {_shown(part)}", "a part of type text, image, video or audio"))
    value = part.get("url", part.get(kind, part.get(_KINDS[kind])))
    if isinstance(value, Mapping) and value.keys() <= {"url", "detail", "format", "data"}:
        value = value.get("url", value.get("data"))
    if value is None:
        raise DataError(Fault(where, f"is {_shown(part)}", f"the {_KINDS[kind]} under 'url' or '{kind}'"))
    return media_of(value, where, _KINDS[kind])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
