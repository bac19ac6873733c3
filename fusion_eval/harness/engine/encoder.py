"""Texts to token ids, the way the peer does it, and once per text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.harness.engine.protocol import Pair

Tokens = tuple[int, ...]
MERGED, EMPTY, LONG, TRUNCATED = "merged into context", "empty continuation", "long continuation", "context truncated"


class Encoder:
    """A tokenizer with the rules for contexts, continuations and windows.

    Args:
        tokenizer: a Hugging Face tokenizer.
        max_length: tokens that the model takes.
        add_bos_token: whether texts begin with special tokens; None for the tokenizer's default.
        prefix_token_id: what an empty context becomes; None for BOS, else EOS.
        causal: one sequence (decoder) rather than two (encoder and decoder).
        compat: keep the peer's doubled BOS in whole texts.
    """

    def __init__(
        self, tokenizer: Any, max_length: int, *, add_bos_token: bool | None = None, prefix_token_id: int | None = None,
        causal: bool = True, compat: bool = False,
    ) -> None:  # fmt: skip
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.add_bos_token = add_bos_token
        self.causal = causal
        self.compat = compat
        self.prefix = prefix_token_id if prefix_token_id is not None else _prefix(tokenizer)
        self._prefix_text = str(tokenizer.decode(self.prefix)) if self.prefix is not None else ""
        self._known: dict[tuple[str, bool | None], Tokens] = {}

    def encode(self, texts: Sequence[str], special: bool | None = None) -> list[Tokens]:
        """Token ids of each text; `special` forces special tokens on or off."""
        missing = list(dict.fromkeys(text for text in texts if (text, special) not in self._known))
        for flag in (True, False, None):
            part = [text for text in missing if self._special(text, special) is flag]
            options: dict[str, Any] = {} if flag is None else {"add_special_tokens": flag}
            if part:
                rows = self.tokenizer(part, verbose=False, **options)["input_ids"]
                self._known.update({(text, special): tuple(row) for text, row in zip(part, rows, strict=True)})
        return [self._known[text, special] for text in texts]

    def _special(self, text: str, wanted: bool | None) -> bool | None:
        if wanted is not None:
            return wanted
        if self._prefix_text and text.startswith(self._prefix_text):
            return False
        return self.add_bos_token

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> list[list[Pair]]:
        """Pieces of each (context, continuation): one, unless the continuation is longer than the model."""
        split = [_move_space(context, continuation) for context, continuation in pairs]
        self.encode([context for context, _ in split if context])
        if self.causal:
            self.encode([context + continuation for context, continuation in split if context])
        return [self._windows(*self._pair(context, continuation)) for context, continuation in split]

    def _pair(self, context: str, continuation: str) -> tuple[Tokens, Tokens, str]:
        if not context:
            alone = self.encode([continuation], special=False)[0]
            if alone[:1] == (self.prefix_id,):
                return alone[:1], alone[1:], ""
            return (self.prefix_id,), alone, ""
        before = self.encode([context])[0]
        if self.causal:
            after = self.encode([context + continuation])[0][len(before) :]
        else:
            after = self.encode([continuation], special=False)[0]
        before = before or (self.prefix_id,)
        if not after and continuation:
            return before, self.encode([continuation], special=False)[0], MERGED
        return before, after, ""

    def _windows(self, context: Tokens, continuation: Tokens, mark: str) -> list[Pair]:
        if not continuation:
            return [Pair(context, (), EMPTY)]
        limit = self.max_length
        if not self.causal or len(continuation) <= limit:
            if self.causal and len(context) + len(continuation) > limit + 1:
                mark = TRUNCATED
            return [Pair(context, continuation, mark)]
        pieces = []
        for start in range(0, len(continuation), limit):
            part = continuation[start : start + limit]
            before = (context + continuation[:start])[-(limit + 1 - len(part)) :]
            pieces.append(Pair(before, part, LONG))
        return pieces

    def room(self, new_tokens: int) -> int:
        """Tokens of a prompt that fit beside `new_tokens`.

        Raises:
            EvaluationError: none do.
        """
        if new_tokens >= self.max_length:
            raise EvaluationError(
                Fault("max_gen_toks", str(new_tokens), f"less than {self.max_length}, which the model takes",
                      "Lower it with gen_kwargs.max_gen_toks.")
            )  # fmt: skip
        return self.max_length - new_tokens

    def after(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """Token ids of a context, which do not depend on what follows, and of a continuation after it."""
        before, whole = self.encode([context])[0], self.encode([context + continuation])[0]
        if whole[: len(before)] == before:
            return before, whole[len(before) :]
        return before, self.encode([continuation], special=False)[0]

    def texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        """Windows of each text; every token is predicted once, none is left out."""
        special = None if self.compat else False
        rows = self.encode(list(texts), special)
        return [[Pair(*window) for window in rolling_windows(row, self.prefix_id, self.max_length)] for row in rows]

    @property
    def prefix_id(self) -> int:
        """The token before a text that has nothing before it."""
        if self.prefix is None:
            raise EvaluationError(
                Fault("tokenizer", "has neither BOS nor EOS, which an empty context needs", do="Set prefix_token_id.")
            )
        return self.prefix

    @property
    def key(self) -> str:
        """A digest of the tokenizer and these settings: equal keys encode equally."""
        digest = hashlib.sha256()
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            digest.update(backend.to_str().encode())
        else:
            digest.update(json.dumps(sorted(self.tokenizer.get_vocab().items())).encode())
        settings = [self.max_length, self.add_bos_token, self.prefix, self.causal, self.compat]
        digest.update(json.dumps([*settings, str(getattr(self.tokenizer, "chat_template", None))]).encode())
        return digest.hexdigest()[:32]


def _move_space(context: str, continuation: str) -> tuple[str, str]:
    """White space at the end of the context belongs to the continuation, as tokenizers see it."""
    stripped = context.rstrip()
    return (stripped, context[len(stripped) :] + continuation) if context != stripped else (context, continuation)


def _prefix(tokenizer: Any) -> int | None:
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos if bos is not None else getattr(tokenizer, "eos_token_id", None)


def rolling_windows(tokens: Tokens, prefix: int, length: int) -> list[tuple[Tokens, Tokens]]:
    """(context, continuation) pairs that together predict every token once.

    The first window predicts from the prefix token; later ones see as much before them as fits.
    """
    if not tokens:
        return []
    first = tokens[:length]
    windows: list[tuple[Tokens, Tokens]] = [((prefix,), first)]
    done = len(first)
    while done < len(tokens):
        count = min(len(tokens) - done, length)
        end = done + count
        windows.append((tokens[end - length - 1 : done], tokens[done:end]))
        done = end
    return windows


def model_length(config: Any, tokenizer: Any, default: int = 2048) -> int:
    """The number of tokens that a model takes, from its configuration, else from its tokenizer."""
    for part in (getattr(config, "text_config", None), config):
        for name in ("n_positions", "max_position_embeddings", "n_ctx"):
            value = getattr(part, name, None)
            if isinstance(value, int):
                return value
    length = getattr(tokenizer, "model_max_length", None)
    return int(length) if length is not None and length < 10**29 else default
