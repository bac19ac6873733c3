"""What engines with a tokenizer at hand have in common: texts to pieces and prompts, conversations to texts."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.harness.engine.encoder import TRUNCATED, Encoder
from fusion_eval.harness.engine.generation import Settings, frozen, normalise
from fusion_eval.harness.engine.protocol import Pair, Prompt
from fusion_eval.harness.media import Asked

logger = logging.getLogger(__name__)


class TextModel(ABC):
    """A model of texts behind the engine protocol.

    Args:
        encoder: rules for token ids.
        name: for reports.
        think_end: text that ends the model's thoughts.
        chat_options: further keywords of the chat template.
    """

    def __init__(
        self, encoder: Encoder, name: str, think_end: str | None = None, chat_options: Mapping[str, Any] | None = None
    ) -> None:
        self.encoder = encoder
        self.tokenizer = encoder.tokenizer
        self.name = name
        self.think_end = think_end
        self.chat_options = dict(chat_options or {})
        self.work: dict[str, float] = {}

    @abstractmethod
    def room(self, settings: Settings) -> int:
        """Tokens that a prompt may have.

        Raises:
            EvaluationError: none, since so many are to be written.
        """

    def count(self, tokens: int) -> None:
        """Note one pass over so many tokens."""
        self.work["tokens_forwarded"] = self.work.get("tokens_forwarded", 0) + tokens
        self.work["forward_passes"] = self.work.get("forward_passes", 0) + 1

    def encode_pairs(self, pairs: Sequence[tuple[Asked, str]]) -> list[list[Pair]]:
        """See `LikelihoodScorer`."""
        return self.encoder.pairs([(text_only(context, self.name), continuation) for context, continuation in pairs])

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        """See `LikelihoodScorer`."""
        return self.encoder.texts(texts)

    def encode_prompts(self, prompts: Sequence[tuple[Asked, dict[str, Any], int]]) -> list[Prompt]:
        """See `Generator`."""
        texts = [text_only(asked, self.name) for asked, _, _ in prompts]
        rows = self.encoder.encode(texts)
        return [
            self._prompt(text, row, normalise(given), seed)
            for text, row, (_, given, seed) in zip(texts, rows, prompts, strict=True)
        ]

    def _prompt(self, text: str, tokens: tuple[int, ...], settings: Settings, seed: int) -> Prompt:
        room = self.room(settings)
        kept = tokens[-room:] or (self.encoder.prefix_id,)
        mark = TRUNCATED if len(tokens) > room else ""
        return Prompt(text, kept, frozen(settings), seed if settings.sampled else None, mark)

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as one prompt; once more without the system message where the template refuses it."""
        import jinja2

        options = {
            "tokenize": False, "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt, **self.chat_options,
        }  # fmt: skip
        if not getattr(self.tokenizer, "chat_template", None):
            raise EvaluationError(
                Fault("apply_chat_template", f"the tokenizer of {self.name} has no chat template", do="Leave it out.")
            )
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), **options))
        except jinja2.TemplateError:
            logger.warning("the chat template of %s refuses a system message; it is left out", self.name)
            rest = [message for message in messages if message["role"] != "system"]
            return str(self.tokenizer.apply_chat_template(rest, **options))


def text_only(asked: Asked, name: str) -> str:
    """What is asked, of a model that takes texts only.

    Raises:
        EvaluationError: a picture, a video or a sound.
    """
    if isinstance(asked, str):
        return asked
    if asked.media:
        kinds = ", ".join(sorted({media.kind for media in asked.media}))
        raise EvaluationError(
            Fault(f"model '{name}'", f"is asked about media ({kinds})", "text", "Use a vision-language model.")
        )
    return asked.text
