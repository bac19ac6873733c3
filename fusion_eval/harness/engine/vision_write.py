"""Writing after pictures: prompts of a batch are prefilled together, those with the same pictures share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fusion_eval.harness.engine.decode import Decoder, Hooks
from fusion_eval.harness.engine.generation import Settings
from fusion_eval.harness.engine.kv import growing_cache
from fusion_eval.harness.engine.prefill import Row, State, finite
from fusion_eval.harness.engine.protocol import Prompt
from fusion_eval.harness.engine.trie import Item, build_pack
from fusion_eval.harness.engine.vision_inputs import Shown
from fusion_eval.harness.engine.vision_passes import Prefix, side_by_side
from fusion_eval.harness.engine.vision_sight import Sight, Way, refusing, require_room

_PASS_TOKENS = {"cpu": 4096, "cuda": 32768}
_TIE = {torch.float32: 1e-4, torch.float64: 1e-8, torch.float16: 2e-3, torch.bfloat16: 1e-2}


class Writer:
    """Continues prompts with pictures.

    Args:
        sight: the model.
        decoder: (hooks) -> a decoder of the same model.
        shown: (prompt, way, exact) -> the prompt as the model reads it.
        max_length: tokens that the model takes.
        name: of the model, for messages.
    """

    def __init__(
        self, sight: Sight, decoder: Callable[[Hooks], Decoder], shown: Callable[[Prompt, Way | None, bool], Shown],
        max_length: int, name: str,
    ) -> None:  # fmt: skip
        self.sight = sight
        self.shown = shown
        self._prompts: dict[Any, Prompt] = {}
        self.max_length = max_length
        self.name = name
        tie = _TIE.get(sight.passes.dtype, 1e-2)
        self.decoder = decoder(Hooks(self._row, self._prefill, self._settle, tie))
        kind = sight.passes.device.type
        self.pass_tokens = _PASS_TOKENS.get(kind, _PASS_TOKENS["cuda"])

    def write(self, prompts: Sequence[Prompt], settings: Settings) -> list[str]:
        """One text per prompt, cut at its stop strings."""
        self._prompts.clear()
        return self.decoder.run(prompts, settings)

    def write_alone(self, prompt: Prompt, settings: Settings, tokenizer: Any) -> str:
        """The same by the model's own `generate`: beams, penalties, or a model whose parts cannot be used apart."""
        shown = self.shown(prompt, "whole" if prompt.media else None, True)
        room = require_room(shown, self.max_length, self.name)
        keywords = {**settings.other, **settings.options, "do_sample": settings.sampled}
        keywords.pop("max_length", None)
        passes = self.sight.passes
        given = {key: torch.tensor([row], device=passes.device) for key, row in shown.types.items()}
        tokens = torch.tensor([shown.tokens], device=passes.device)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        with torch.inference_mode(), torch.random.fork_rng(enabled=prompt.seed is not None), refusing(shown, self.name):
            if prompt.seed is not None:
                torch.manual_seed(prompt.seed)
            output = passes.model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), pad_token_id=pad,
                max_new_tokens=min(settings.max_tokens, room), stop_strings=[s for s in settings.until if s] or None,
                tokenizer=tokenizer, **given, **passes.media([shown]), **keywords,
            )  # fmt: skip
        return self.decoder.finish(output[0, tokens.shape[1] :].tolist(), settings)

    def _row(self, position: int, prompt: Prompt) -> Row:
        shown = self.shown(prompt, None, False)
        room = require_room(shown, self.max_length, self.name)
        self._prompts[shown.key] = prompt
        return Row(position, shown.tokens, prompt.seed, room=room, source=shown)

    def _prefill(self, rows: Sequence[Row], new_tokens: int) -> State:
        """Keys, values and next logits of all rows, in passes of a bounded size."""
        prefixes = {row.source.key: row.source for row in rows if row.source.prefix}
        seeing = [row for row in rows if row.source.prefix]
        shared = len(prefixes) < len(seeing) or any(shown.features is None for shown in prefixes.values())
        kept: dict[int, Prefix] = {}
        logits: dict[int, torch.Tensor] = {}
        if shared:
            known = self._prefixes(list(prefixes.values()))
            for part in self._parts(seeing, gaps=True):
                before = [known[row.source.key] for row in part]
                tails = [row.tokens[row.source.prefix :] for row in part]
                _note(part, *self.sight.passes.tails(before, tails), kept, logits)
        for part in self._parts([row for row in rows if not shared or not row.source.prefix]):
            shown = [row.source for row in part]
            _note(part, *self.sight.passes.batch(shown, [len(s.tokens) for s in shown]), kept, logits)
        for row in rows:
            row.shift = kept[id(row)].shift
        return _state(rows, [kept[id(row)] for row in rows], torch.stack([logits[id(row)] for row in rows]))

    def _prefixes(self, shown: Sequence[Shown]) -> dict[Any, Prefix]:
        """Of distinct prompts; together where their pictures' features are at hand."""
        found: dict[Any, Prefix] = {s.key: self.sight.prefix(s) for s in shown if s.features is None}
        rest = sorted((s for s in shown if s.features is not None), key=lambda s: -s.prefix)
        for start in range(0, len(rest), size := max(1, self.pass_tokens // max([s.prefix for s in rest] or [1]))):
            part = rest[start : start + size]
            kept, _ = self.sight.passes.batch(part, [s.prefix for s in part])
            found.update({s.key: prefix for s, prefix in zip(part, kept, strict=True)})
        return found

    def _parts(self, rows: Sequence[Row], gaps: bool = False) -> list[list[Row]]:
        """Rows of similar length, within the tokens of a pass; one by one where gaps would shift a sliding window."""
        window = self.sight.passes.window
        if gaps and window is not None and any(len(row.tokens) > window for row in rows):
            return [[row] for row in rows]
        parts: list[list[Row]] = []
        for row in sorted(rows, key=lambda row: -len(row.tokens)):
            if not parts or (len(parts[-1]) + 1) * len(parts[-1][0].tokens) > self.pass_tokens:
                parts.append([])
            parts[-1].append(row)
        return parts

    def _settle(self, row: Row) -> int:
        """The best next token by passes over this row alone."""
        shown: Shown = row.source
        if not shown.exact:
            shown = self.shown(self._prompts[shown.key], None, True)
        prefix = self.sight.prefix(shown)
        tokens = np.array((*row.tokens, *row.new), dtype=np.int64)
        pack = build_pack([Item(0, tokens, (0,))], prefix.length)
        self.sight.passes.work["ties_settled"] = self.sight.passes.work.get("ties_settled", 0) + 1
        return int(finite(self.sight.passes.tree(prefix, pack, pack.paths[0]))[-1].argmax())


def _note(
    rows: Sequence[Row], kept: Sequence[Prefix], logits: torch.Tensor, all_kept: dict[int, Prefix],
    all_logits: dict[int, torch.Tensor],
) -> None:  # fmt: skip
    for row, prefix, scores in zip(rows, kept, logits, strict=True):
        all_kept[id(row)], all_logits[id(row)] = prefix, scores


def _state(rows: Sequence[Row], kept: Sequence[Prefix], logits: torch.Tensor) -> State:
    """Rows ready for their first new token."""
    width = max(prefix.length for prefix in kept)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, prefix in enumerate(kept):
        mask[i, width - prefix.length :] = 1
    cache = growing_cache(side_by_side(kept, width), width)
    return State(list(rows), cache, mask.to(logits.device), finite(logits))
