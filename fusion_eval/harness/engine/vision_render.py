"""A conversation as the text that a model was taught to expect, with a slot in the place of each picture."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.media import Conversation, Media, Turn

logger = logging.getLogger(__name__)
Message = dict[str, Any]
_SIDES = {"system": "SYSTEM: ", "user": "USER: ", "assistant": "ASSISTANT: "}


def messages_of(conversation: Conversation) -> list[Message]:
    """Turns in the shape that chat templates take; pictures stand as parts without content."""
    return [
        {
            "role": turn.role,
            "content": [
                {"type": part.kind} if isinstance(part, Media) else {"type": "text", "text": part}
                for part in turn.parts
            ],
        }
        for turn in conversation.turns
    ]


def _filled(parts: Sequence[str | Media], slot: str, pictures: Iterator[Media]) -> tuple[str | Media, ...]:
    """Parts without their pictures, and with the given ones in the place of the slots of the texts."""
    found: list[str | Media] = []
    for part in parts:
        if isinstance(part, Media):
            found += [part] if part.kind != "image" else []
            continue
        head, *tails = part.split(slot)
        found += [head] if head else []
        for tail in tails:
            found += [next(pictures), tail] if tail else [next(pictures)]
    return tuple(found)


class Renderer:
    """Renders conversations with a processor.

    Args:
        processor: of the model.
        name: of the model, for messages.
        options: further keywords of the chat template.
    """

    def __init__(self, processor: Any, name: str, options: Mapping[str, Any] | None = None) -> None:
        self.processor = processor
        self.name = name
        self.options = dict(options or {})
        tokenizer = getattr(processor, "tokenizer", processor)
        self._template = getattr(processor, "chat_template", None)
        self._text_template = None if self._template else getattr(tokenizer, "chat_template", None)
        self._tokenizer = tokenizer
        if not self._template and not self._text_template:
            logger.warning("%s has no chat template; prompts are written as USER: ... ASSISTANT:", name)

    @functools.cached_property
    def leaves_slots(self) -> bool:
        """Whether prompts hold a slot for each picture; not where the processor puts pictures before every text.

        Processors that know chat templates do not; of others it is found out on a small picture.
        """
        from PIL import Image

        if self._template or self._text_template:
            return True
        image = Image.new("RGB", (32, 32))
        try:
            row = self.processor(text="A", images=image, return_tensors="pt")["input_ids"][0]
        except (ValueError, TypeError, KeyError, RuntimeError, IndexError):
            return True
        return len(row) <= len(self._tokenizer("A")["input_ids"]) + 1

    def render(self, conversation: Conversation, add_generation_prompt: bool | None = None) -> str:
        """The text; a conversation that ends with the assistant's turn is left open there.

        Raises:
            ConfigError: media of a kind that the processor does not take.
        """
        self._check(conversation)
        messages = messages_of(self._placed(conversation))
        ask = messages[-1]["role"] != "assistant" if add_generation_prompt is None else add_generation_prompt
        if self._template:
            return self._rendered(self.processor, messages, ask)
        flat = [{"role": m["role"], "content": self._flat(m["content"])} for m in messages]
        if self._text_template:
            return self._rendered(self._tokenizer, flat, ask)
        text = "\n".join(_SIDES.get(m["role"], "") + m["content"] for m in flat)
        return f"{text}\nASSISTANT:" if ask else text

    def _placed(self, conversation: Conversation) -> Conversation:
        """The conversation with its pictures where its text has slots for all of them, as some tasks write it."""
        pictures = [medium for medium in conversation.media if medium.kind == "image"]
        slot = str(getattr(self.processor, "image_token", None) or "")
        if not pictures or not slot or sum(turn.text.count(slot) for turn in conversation.turns) != len(pictures):
            return conversation
        rest = iter(pictures)
        return Conversation(tuple(Turn(turn.role, _filled(turn.parts, slot, rest)) for turn in conversation.turns))

    def _rendered(self, owner: Any, messages: list[Message], ask: bool) -> str:
        import jinja2

        options = {
            "tokenize": False, "add_generation_prompt": ask,
            "continue_final_message": not ask and messages[-1]["role"] == "assistant", **self.options,
        }  # fmt: skip
        try:
            return str(owner.apply_chat_template(messages, **options))
        except jinja2.TemplateError:
            rest = [message for message in messages if message["role"] != "system"]
            if len(rest) == len(messages):
                raise
            logger.warning("the chat template of %s refuses a system message; it is left out", self.name)
            return str(owner.apply_chat_template(rest, **options))

    def _flat(self, content: list[dict[str, str]]) -> str:
        """Parts as one string, a slot on a line of its own for each picture that has one."""
        shown = [part for part in content if part["type"] != "image" or self.leaves_slots]
        return "".join(part["text"] if part["type"] == "text" else f"{self._slot(part['type'])}\n" for part in shown)

    def _slot(self, kind: str) -> str:
        return str(getattr(self.processor, f"{kind}_token", None) or f"<{kind}>")

    def _check(self, conversation: Conversation) -> None:
        takes = {"image": "image_processor", "video": "video_processor", "audio": "feature_extractor"}
        for kind in dict.fromkeys(medium.kind for medium in conversation.media):
            part = getattr(self.processor, takes[kind], None)
            if part is None and not (kind == "audio" and getattr(self.processor, "audio_processor", None)):
                raise ConfigError(
                    Fault(f"model '{self.name}'", f"{type(self.processor).__name__} takes no {kind}",
                          f"a model whose processor takes {kind}", "Leave out the task, or choose another model.")
                )  # fmt: skip
