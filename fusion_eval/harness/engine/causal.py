"""Scoring with a decoder: trees of tokens in one pass, shared prefixes kept, logits only where they are needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusion_eval.harness.engine.model_traits import attention_reach, forget_length, length_bound, rotary_reach
from fusion_eval.harness.engine.protocol import Pair, Score, Told, Work
from fusion_eval.harness.engine.tree import Passed, TreeRunner, check_finite, out_of_memory
from fusion_eval.harness.engine.trie import Branch, Budget, Item, Planner, items_of, units_of, without

logger = logging.getLogger(__name__)
_LOGIT_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
_PASS_TOKENS = {"cpu": 384, "cuda": 4096}
_TOLERANCE = 5e-3


@dataclass(slots=True)
class ScorerOptions:
    """How scoring is arranged.

    Args:
        pass_tokens: tokens of one forward pass; None for a value that suits the device.
        share: share prefixes; None to find out whether the model allows it.
    """

    pass_tokens: int | None = None
    share: bool | None = None


class CausalScorer:
    """Scores pairs of token ids with a decoder.

    Args:
        model: a Hugging Face causal language model in eval mode.
        max_length: tokens that it takes.
        options: see `ScorerOptions`.
        work: counters to add to.
    """

    def __init__(self, model: Any, max_length: int, options: ScorerOptions, work: dict[str, float]) -> None:
        device = next(model.parameters()).device
        kind = device.type if device.type in _PASS_TOKENS else "cuda"
        config = getattr(model.config, "text_config", None) or model.config
        rows = max(64, _LOGIT_BYTES[kind] // (4 * int(config.vocab_size)))
        self.runner = TreeRunner(model, Budget(options.pass_tokens or _PASS_TOKENS[kind], rows), work)
        self.model = model
        self.max_length = max_length
        self.work = work
        self.device = device
        self._vocabulary = int(config.vocab_size)
        self._reach = attention_reach(config)
        self.rotary_reach = rotary_reach(config)
        self._length_bound = length_bound(model) if self.rotary_reach else []
        self._share = options.share

    @property
    def shares(self) -> bool:
        """Whether this model gives the same answers with shared prefixes (found out on a few tokens)."""
        if self._share is None:
            self._share = self.runner.takes_positions and self._trial()
            if not self._share:
                logger.warning("%s cannot share prefixes; each sequence runs alone", type(self.model).__name__)
        return self._share

    def plan(self, pairs: Sequence[Pair]) -> list[Work]:
        """Units of work over distinct pairs."""
        filled = [i for i, pair in enumerate(pairs) if pair.continuation]
        empty = [i for i, pair in enumerate(pairs) if not pair.continuation]
        items = items_of([pairs[i] for i in filled], self.max_length)
        items = [Item(filled[item.position], item.tokens, item.targets) for item in items]
        works = [Work(tuple(empty), 0, None)] if empty else []
        fits = [item for item in items if self.takes_tree(len(item.tokens))]
        rest = [item for item in items if not self.takes_tree(len(item.tokens))]
        if fits:
            works += [_work(unit) for unit in units_of(Planner(fits, self.runner.budget).plan())]
        return works + [_work(batch) for batch in _alone(rest, self.runner.budget, self.rotary_reach)]

    def takes_tree(self, length: int) -> bool:
        """Whether a sequence of this length may be part of a tree."""
        return self.shares and all(length <= reach for reach in (self._reach, self.rotary_reach) if reach)

    def settle(self) -> None:
        """Make what comes next independent of the lengths that came before."""
        forget_length(self._length_bound)

    def score(self, work: Work, known: Mapping[int, Score] | None = None, told: Told | None = None) -> list[Score]:
        """One score per position of the unit.

        Args:
            work: the unit.
            known: scores by position; passes that would give none but these are left out.
            told: called with the scores of each pass as it ends.

        Raises:
            EvaluationError: logits that are not numbers, or not enough memory for one sequence.
        """
        found = dict(known or {})
        with torch.inference_mode():
            self.settle()
            if isinstance(work.payload, Branch):
                self._tree(without(work.payload, found), found, told)
            elif work.payload is not None:
                self._padded(work.payload, found)
            else:
                found = dict.fromkeys(work.positions, Score(0.0, True, 0))
        if told is not None and not isinstance(work.payload, Branch):
            told(found)
        return [found[position] for position in work.positions]

    def _tree(self, branch: Branch, found: dict[int, Score], told: Told | None = None) -> None:
        fresh: dict[int, Score] = {}

        def take(done: Passed) -> None:
            _collect(done.items, [np.searchsorted(done.rows, path) for path in done.pack.paths], done.logits, fresh)

        def after() -> None:
            found.update(fresh)
            if told is not None:
                told(fresh)
            fresh.clear()

        if branch.packs or branch.branches:
            self.runner.run(branch, take, after=after)

    def _padded(self, items: list[Item], found: dict[int, Score]) -> None:
        """A right-padded batch, for models that do not take trees; sequences that are equal run once."""
        distinct = list({item.tokens.tobytes(): item for item in items}.values())
        width = max(len(item.tokens) for item in distinct)
        tokens = torch.zeros((len(distinct), width), dtype=torch.long)
        for row, item in enumerate(distinct):
            tokens[row, : len(item.tokens)] = torch.from_numpy(item.tokens)
        try:
            logits = self.model(input_ids=tokens.to(self.device), use_cache=False).logits
        except torch.OutOfMemoryError as error:
            if len(items) == 1:
                raise out_of_memory(width) from error
            torch.cuda.empty_cache()
            self._padded(items[: len(items) // 2], found)
            self._padded(items[len(items) // 2 :], found)
            return
        self.runner.count(tokens.numel())
        place = {item.tokens.tobytes(): row for row, item in enumerate(distinct)}
        for item in items:
            row = logits[place[item.tokens.tobytes()], item.start : len(item.tokens)]
            _collect([item], [np.arange(len(item.targets))], row, found)

    def _trial(self) -> bool:
        """Whether a small tree, and two of them in a batch, give the same scores as plain batches."""
        v = self._vocabulary
        head = tuple((7 * i + 3) % v for i in range(min(48, self.max_length - 6)))
        pairs = [Pair(head, (a % v, b % v)) for a, b in ((5, 9), (5, 11), (8, 2))]
        pairs.append(Pair(tuple((5 * i + 4) % v for i in range(len(head) // 2)), (3 % v,)))
        items = sorted(items_of(pairs, self.max_length), key=lambda item: (item.position == 3, _order(item)))
        depth = min(40, len(head) - 1)
        plain: dict[int, Score] = {}
        tree: dict[int, Score] = {}
        kept = dict(self.work)
        try:
            with torch.inference_mode():
                self._padded(items, plain)
                self._tree(Branch(items[0].tokens[:depth], depth, [items[:3]]), tree)
                self._tree(Branch(items[0].tokens[:0], 0, [items]), tree)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - any failure means that this architecture takes no tree
            logger.debug("the tree trial failed: %s", error)
            return False
        finally:
            self.work.clear()
            self.work.update(kept)
        limit = _TOLERANCE if self.runner.dtype == torch.float32 else 0.5
        return all(abs(plain[i].value - tree[i].value) < limit for i in range(len(pairs)))


def _order(item: Item) -> bytes:
    return item.tokens.astype(">u4").tobytes()


def _work(unit: Branch | list[Item]) -> Work:
    items = unit.items() if isinstance(unit, Branch) else unit
    return Work(tuple(item.position for item in items), sum(len(item.tokens) for item in items), unit)


def _alone(items: Sequence[Item], budget: Budget, strict: int | None = None) -> Iterator[list[Item]]:
    """Batches of sequences of similar length, within the budget with padding; beyond `strict` of equal length."""
    batch: list[Item] = []
    for item in sorted(items, key=lambda item: (-len(item.tokens), _order(item))):
        width = len(batch[0].tokens) if batch else len(item.tokens)
        full = (len(batch) + 1) * width
        apart = strict is not None and width > strict and len(item.tokens) != width
        if batch and (apart or full > budget.tokens or full > max(budget.rows, width)):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _collect(items: Sequence[Item], rows: Sequence[Any], logits: torch.Tensor, found: dict[int, Score]) -> None:
    """Scores from logits [rows, vocabulary]; summed in double precision.

    Raises:
        EvaluationError: a score that is not a number.
    """
    flat = logits.float()
    peak = flat.amax(dim=-1)
    normaliser = peak + (flat - peak[:, None]).exp_().sum(dim=-1).log()
    index = torch.from_numpy(np.concatenate([np.asarray(row) for row in rows])).to(flat.device)
    target = torch.tensor([t for item in items for t in item.targets], device=flat.device)
    own = flat[index, target]
    picked = (own - normaliser[index]).double()
    check_finite(picked)
    values = picked.cpu().numpy()
    highest = own == peak[index]
    highest[highest.clone()] = flat[index[highest]].argmax(dim=-1) == target[highest]  # of equal ones the first counts
    equal = highest.cpu().numpy()
    place = 0
    for item in items:
        span = slice(place, place + len(item.targets))
        found[item.position] = Score(float(values[span].sum()), bool(equal[span].all()), len(item.targets))
        place = span.stop
