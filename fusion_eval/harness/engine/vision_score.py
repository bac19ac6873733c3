"""Scoring of choices after pictures: what they share is computed once, the bits depend on the question alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.harness.engine.protocol import Score
from fusion_eval.harness.engine.tree import check_finite, out_of_memory
from fusion_eval.harness.engine.trie import Item, build_pack, common_length
from fusion_eval.harness.engine.vision_inputs import PER_TOKEN, Shown
from fusion_eval.harness.engine.vision_sight import Sight, refusing

Tokens = tuple[int, ...]


class ChoiceScorer:
    """Scores continuations of one question.

    Args:
        sight: the model.
        pass_tokens: tokens of one forward pass.
    """

    def __init__(self, sight: Sight, pass_tokens: int) -> None:
        self.sight = sight
        self.pass_tokens = pass_tokens

    def score(self, shown: Shown, continuations: Sequence[Tokens]) -> list[Score]:
        """One score per continuation of a prompt, each at least one token long.

        Raises:
            EvaluationError: logits that are not numbers, or not enough memory.
        """
        if shown.media and shown.prefix >= len(shown.tokens):
            return [self.score_whole(shown, continuation) for continuation in continuations]
        base = len(shown.tokens)
        items = [
            Item(i, np.array((*shown.tokens, *continuation), dtype=np.int64)[:-1], continuation)
            for i, continuation in enumerate(continuations)
        ]
        found: dict[int, Score] = {}
        with torch.inference_mode():
            for pack in self._packs(sorted(items, key=lambda item: item.tokens[base:].tolist()), shown.prefix):
                self._pass(shown, pack, found)
        return [found[i] for i in range(len(continuations))]

    def _packs(self, items: list[Item], base: int) -> list[list[Item]]:
        """Neighbours that fit into one pass; the cuts depend on these items alone."""
        packs = [[items[0]]]
        size = len(items[0].tokens) - base
        for before, item in pairwise(items):
            more = len(item.tokens) - max(base, common_length(before.tokens, item.tokens))
            if size + more > self.pass_tokens:
                packs.append([])
                more, size = len(item.tokens) - base, 0
            packs[-1].append(item)
            size += more
        return packs

    def _pass(self, shown: Shown, items: list[Item], found: dict[int, Score]) -> None:
        try:
            prefix = self.sight.prefix(shown)
            pack = build_pack(items, prefix.length)
            rows = np.unique(np.concatenate(pack.paths))
            logits = self.sight.passes.tree(prefix, pack, rows)
        except torch.OutOfMemoryError as error:
            if len(items) == 1:
                raise out_of_memory(len(items[0].tokens)) from error
            torch.cuda.empty_cache()
            middle = len(items) // 2
            self._pass(shown, items[:middle], found)
            self._pass(shown, items[middle:], found)
            return
        for item, path in zip(items, pack.paths, strict=True):
            own = torch.from_numpy(np.searchsorted(rows, path)).to(logits.device)
            found[item.position] = score_of(logits[own], item.targets)

    def score_whole(self, shown: Shown, continuation: Tokens) -> Score:
        """The same by one `forward` over prompt and continuation, for models whose parts cannot be used apart.

        Where types tell pictures from text, what follows is text. Where a prompt with pictures has zeros only, as that
        of PaliGemma, they stand for a prompt that is seen at once, and ones for what follows.
        """
        more = len(continuation)
        types = {key: (*kinds, *(int(not any(kinds)),) * more) for key, kinds in shown.types.items()}
        tensors = {key: _longer(key, value, more) for key, value in shown.tensors.items()}
        whole = Shown((*shown.tokens, *continuation), shown.prefix, shown.media, types, tensors, shown.features)
        with torch.inference_mode(), refusing(whole, self.sight.maker.name):
            logits = self.sight.passes.logits(whole, more + 1)
        return score_of(logits[:-1], continuation)


def _longer(key: str, value: torch.Tensor, more: int) -> torch.Tensor:
    """A tensor that has a row for every token, for more tokens that see what the last one sees."""
    return torch.cat([value, value[:, -1:].expand(-1, more, *value.shape[2:])], 1) if key in PER_TOKEN else value


def score_of(logits: torch.Tensor, targets: Tokens) -> Score:
    """The score of targets from the logits [targets, vocabulary] before each; summed in double precision."""
    flat = logits.float()
    index = torch.tensor(targets, device=flat.device)
    picked = flat.log_softmax(-1).gather(1, index[:, None])[:, 0].double()
    check_finite(picked)
    greedy = bool((flat.argmax(-1) == index).all())
    return Score(float(picked.sum()), greedy, len(targets))


def check_length(shown: Shown, continuation: Sequence[int], limit: int, name: str) -> None:
    """Refuse a prompt that leaves no room for a continuation.

    Raises:
        EvaluationError: see above.
    """
    needed: Any = len(shown.tokens) + len(continuation) - 1
    if needed > limit:
        raise EvaluationError(
            Fault(f"prompt for '{name}'", f"takes {needed} tokens with {len(shown.media)} media and a continuation",
                  f"at most {limit}, which the model takes", "Show fewer or smaller pictures, or raise max_length.")
        )  # fmt: skip
