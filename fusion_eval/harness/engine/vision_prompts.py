"""What engines that see share: conversations rendered, encoded, and remembered with what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusion_eval.harness.engine.encoder import EMPTY
from fusion_eval.harness.engine.generation import frozen, normalise
from fusion_eval.harness.engine.protocol import Pair, Prompt
from fusion_eval.harness.engine.vision_picture import notes_of
from fusion_eval.harness.engine.vision_render import Renderer
from fusion_eval.harness.engine.vision_settings import plain
from fusion_eval.harness.media import Asked, Conversation, Media

Key = tuple[tuple[int, ...] | str | None, tuple[str, ...]]


class SeenPrompts:
    """The encoding half of an engine that sees; plain text goes through its engine of text.

    Args:
        text: the engine of text, with an `encoder`.
        renderer: of conversations.
        max_new_tokens: of an answer whose task does not say.
        max_pixels: of one picture; larger ones are refused.
    """

    def __init__(self, text: Any, renderer: Renderer, max_new_tokens: int, max_pixels: int) -> None:
        self.text, self.renderer = text, renderer
        self.max_new_tokens, self.max_pixels = max_new_tokens, max_pixels
        self._rendered: dict[Key, str] = {}
        self._media: dict[str, Media] = {}

    def encode_pairs(self, pairs: Sequence[tuple[Asked, str]]) -> list[list[Pair]]:
        """See `LikelihoodScorer`."""
        texts = iter(self.text.encode_pairs([(asked, tail) for asked, tail in pairs if isinstance(asked, str)]))
        return [next(texts) if isinstance(asked, str) else [self._pair(asked, tail)] for asked, tail in pairs]

    def _pair(self, conversation: Conversation, continuation: str) -> Pair:
        rendered = self.renderer.render(conversation)
        before, after = self.text.encoder.after(rendered, continuation)
        media, mark = self._remember(conversation, before, rendered)
        return Pair(before, after, mark if continuation else EMPTY, media)

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        """See `LikelihoodScorer`."""
        found: list[list[Pair]] = self.text.encode_texts(texts)
        return found

    def encode_prompts(self, prompts: Sequence[tuple[Asked, dict[str, Any], int]]) -> list[Prompt]:
        """See `Generator`."""
        texts = iter(self.text.encode_prompts([(a, given, seed) for a, given, seed in prompts if isinstance(a, str)]))
        return [
            next(texts) if isinstance(asked, str) else self._prompt(asked, given, seed)
            for asked, given, seed in prompts
        ]

    def _prompt(self, conversation: Conversation, given: dict[str, Any], seed: int) -> Prompt:
        rendered = self.renderer.render(conversation)
        tokens = self.text.encoder.encode([rendered])[0]
        settings = plain(normalise(given, self.max_new_tokens))
        media, mark = self._remember(conversation, tokens, rendered)
        return Prompt(rendered, tokens, frozen(settings), seed if settings.sampled else None, mark, media)

    def _remember(
        self, conversation: Conversation, tokens: tuple[int, ...], rendered: str
    ) -> tuple[tuple[str, ...], str]:
        """Digests and marks of what a conversation shows, kept for when its turn comes."""
        mark = notes_of(conversation.media, self.max_pixels)
        for medium in conversation.media:
            self._media.setdefault(medium.digest, medium)
        digests = tuple(medium.digest for medium in conversation.media)
        self._rendered[tokens, digests] = rendered
        return digests, mark

    def _asks(self, tokens: tuple[int, ...] | str | None, media: tuple[str, ...]) -> bool:
        """Whether a piece comes from a conversation."""
        return (tokens, media) in self._rendered
