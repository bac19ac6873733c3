"""Pictures, videos and sounds of a prompt: `Media`, and the `Conversation` that holds them in their places.

A prompt with media is asked by what it says and by the digests of what it shows, so equal questions are answered once
and an answer is never read for another picture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["image", "video", "audio"]
KINDS: Final = ("image", "video", "audio")


@dataclass(frozen=True, slots=True)
class Deferred:
    """Content that is not kept in memory but made anew when it is wanted."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Media:
    """One picture, video or sound.

    Args:
        kind: what it is.
        digest: of its content; media are equal where kind and digest are.
        held: the content, or how to make it.
        note: what was lost on the way to it, for the report.
    """

    kind: Kind
    digest: str
    held: Any = field(compare=False, repr=False)
    note: str = field(default="", compare=False)

    @property
    def value(self) -> Any:
        """A PIL image, a list of frames, a path of a video, or {"array", "sampling_rate"} of a sound."""
        return self.held.make() if isinstance(self.held, Deferred) else self.held


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says: texts and media in order."""

    role: str
    parts: tuple[str | Media, ...]

    @property
    def text(self) -> str:
        """The texts alone, joined."""
        return "".join(part for part in self.parts if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that may hold media; the engine puts it into its own template."""

    turns: tuple[Turn, ...]

    @classmethod
    def ask(cls, media: Iterable[Media], text: str, system: str | None = None) -> Conversation:
        """One question: the media first, then the text, after an optional system message."""
        head = (Turn("system", (system,)),) if system else ()
        return cls((*head, Turn("user", (*media, text))))

    @property
    def media(self) -> tuple[Media, ...]:
        """All media in the order in which they stand."""
        return tuple(part for turn in self.turns for part in turn.parts if isinstance(part, Media))

    @property
    def text(self) -> str:
        """The texts alone, turn after turn."""
        return "\n".join(turn.text for turn in self.turns)

    @property
    def key(self) -> str:
        """A digest of all that is said and shown, and where."""
        parts = [
            [turn.role, [part if isinstance(part, str) else [part.kind, part.digest] for part in turn.parts]]
            for turn in self.turns
        ]
        return digest_of(json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass"))


Asked = str | Conversation
"""What a model is asked: plain text, or a conversation."""


def text_of(asked: Asked) -> str:
    """The text of what is asked."""
    return asked if isinstance(asked, str) else asked.text


def digest_of(content: bytes, *about: object) -> str:
    """A digest of content and what is to be known about it (mode, size, rate), 40 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=20)
    state.update(repr(about).encode())
    state.update(content)
    return state.hexdigest()
