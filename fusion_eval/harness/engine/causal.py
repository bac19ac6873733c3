"""Scoring with a decoder: trees of tokens in one pass, shared prefixes kept, logits only where they are needed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.harness.engine.kv import cache_keyword, crop, new_cache
from fusion_eval.harness.engine.protocol import Pair, Score, Work
from fusion_eval.harness.engine.trie import Branch, Budget, Item, Planner, build_pack, items_of, units_of

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
        self.model = model
        self.max_length = max_length
        self.work = work
        self.device = next(model.parameters()).device
        self.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        kind = self.device.type if self.device.type in _PASS_TOKENS else "cuda"
        config = getattr(model.config, "text_config", None) or model.config
        rows = max(64, _LOGIT_BYTES[kind] // (4 * int(config.vocab_size)))
        self.budget = Budget(options.pass_tokens or _PASS_TOKENS[kind], rows)
        self._window = _sliding_window(config)
        self._cache = cache_keyword(model)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._share = options.share

    @property
    def shares(self) -> bool:
        """Whether this model gives the same answers with shared prefixes (found out on a few tokens)."""
        if self._share is None:
            self._share = self._takes_positions and self._trial()
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
        if not self.shares:
            return works + [_work(unit) for unit in _alone(items, self.budget)]
        long = [item for item in items if self._window and len(item.tokens) > self._window]
        short = [item for item in items if not (self._window and len(item.tokens) > self._window)]
        units = units_of(Planner(short, self.budget).plan())
        return works + [_work(unit) for unit in units] + [_work(batch) for batch in _alone(long, self.budget)]

    def score(self, work: Work) -> list[Score]:
        """One score per position of the unit.

        Raises:
            EvaluationError: logits that are not numbers, or not enough memory for one sequence.
        """
        if work.payload is None:
            return [Score(0.0, True, 0) for _ in work.positions]
        found: dict[int, Score] = {}
        with torch.inference_mode():
            if isinstance(work.payload, Branch):
                self._branch(work.payload, None, found)
            else:
                self._padded(work.payload, found)
        return [found[position] for position in work.positions]

    # trees

    def _branch(self, branch: Branch, cache: Any, found: dict[int, Score]) -> None:
        base = branch.depth - len(branch.extend)
        if len(branch.extend):
            cache = cache if cache is not None else new_cache()
            self._prefill(branch.extend, base, cache)
        for pack in branch.packs:
            self._pack(pack, branch.depth, cache, found)
        for below in branch.branches:
            self._branch(below, cache, found)
            cache = self._cropped(cache, branch.depth)

    def _cropped(self, cache: Any, depth: int) -> Any:
        if cache is None or depth == 0:
            return None
        crop(cache, depth)
        return cache

    def _prefill(self, tokens: np.ndarray[Any, Any], base: int, cache: Any) -> None:
        """Keys and values of a prefix; no logits but one row that the model insists on."""
        for start in range(0, len(tokens), max(self.budget.tokens, 256)):
            part = tokens[start : start + max(self.budget.tokens, 256)]
            n, before = len(part), base + start
            sees = np.tri(n, dtype=bool)
            self._forward(part, np.arange(before, before + n), sees, before, cache, np.array([n - 1]))

    def _pack(self, items: list[Item], base: int, cache: Any, found: dict[int, Score]) -> None:
        try:
            pack = build_pack(items, base)
            rows = np.unique(np.concatenate(pack.paths))
            logits = self._forward(pack.tokens, pack.positions, pack.sees, base, cache, rows)
        except torch.OutOfMemoryError as error:
            self._cropped(cache, base)
            self._halved(items, base, cache, found, error)
            return
        self._cropped(cache, base)
        _collect(items, [np.searchsorted(rows, path) for path in pack.paths], logits, found)

    def _halved(self, items: list[Item], base: int, cache: Any, found: dict[int, Score], error: BaseException) -> None:
        if len(items) == 1:
            raise EvaluationError(
                Fault("memory", f"does not suffice for one sequence of {len(items[0].tokens)} tokens",
                      do="Use a smaller max_length, another dtype, or a larger device.")
            ) from error  # fmt: skip
        torch.cuda.empty_cache()
        self.budget = Budget(max(64, self.budget.tokens // 2), max(64, self.budget.rows // 2))
        middle = len(items) // 2
        self._pack(items[:middle], base, cache, found)
        self._pack(items[middle:], base, cache, found)

    def _forward(
        self, tokens: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], sees: np.ndarray[Any, Any], base: int,
        cache: Any, rows: np.ndarray[Any, Any],
    ) -> torch.Tensor:  # fmt: skip
        """Logits [rows, vocabulary] of one pass over a tree; the cache, where given, grows by its tokens."""
        n = len(tokens)
        visible = torch.from_numpy(np.concatenate([np.ones((n, base), dtype=bool), sees], axis=1)).to(self.device)
        mask = torch.zeros((1, 1, n, base + n), dtype=self.dtype, device=self.device)
        mask.masked_fill_(~visible, torch.finfo(self.dtype).min)
        wanted = torch.from_numpy(rows).to(self.device)
        options: dict[str, Any] = {"logits_to_keep": wanted} if self._keeps_logits else {}
        output = self.model(
            input_ids=torch.from_numpy(tokens)[None].to(self.device),
            position_ids=torch.from_numpy(positions)[None].to(self.device),
            attention_mask=mask, use_cache=cache is not None, **{self._cache: cache}, **options,
        )  # fmt: skip
        self._count(n)
        logits: torch.Tensor = output.logits[0] if self._keeps_logits else output.logits[0, wanted]
        return logits

    def _count(self, tokens: int) -> None:
        self.work["tokens_forwarded"] = self.work.get("tokens_forwarded", 0) + tokens
        self.work["forward_passes"] = self.work.get("forward_passes", 0) + 1

    # plain batches

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
                self._halved(items, 0, None, found, error)
            torch.cuda.empty_cache()
            self._padded(items[: len(items) // 2], found)
            self._padded(items[len(items) // 2 :], found)
            return
        self._count(tokens.numel())
        place = {item.tokens.tobytes(): row for row, item in enumerate(distinct)}
        for item in items:
            row = logits[place[item.tokens.tobytes()], item.start : len(item.tokens)]
            _collect([item], [np.arange(len(item.targets))], row, found)

    def _trial(self) -> bool:
        """Whether a small tree gives the same scores as plain batches."""
        vocabulary = int((getattr(self.model.config, "text_config", None) or self.model.config).vocab_size)
        head = [(7 * i + 3) % vocabulary for i in range(min(48, self.max_length - 6))]
        pairs = [Pair(tuple(head), (a % vocabulary, b % vocabulary)) for a, b in ((5, 9), (5, 11), (8, 2))]
        items = items_of(pairs, self.max_length)
        plain: dict[int, Score] = {}
        tree: dict[int, Score] = {}
        kept = dict(self.work)
        try:
            with torch.inference_mode():
                self._padded(items, plain)
                branch = Branch(items[0].tokens[:40], min(40, len(head) - 1), [sorted(items, key=_order)])
                branch.extend = items[0].tokens[: branch.depth]
                self._branch(branch, None, tree)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - any failure means that this architecture takes no tree
            logger.debug("the tree trial failed: %s", error)
            return False
        finally:
            self.work.clear()
            self.work.update(kept)
        limit = _TOLERANCE if self.dtype == torch.float32 else 0.5
        return all(abs(plain[i].value - tree[i].value) < limit for i in range(len(pairs)))


def _order(item: Item) -> bytes:
    return item.tokens.astype(">u4").tobytes()


def _work(unit: Branch | list[Item]) -> Work:
    items = unit.items() if isinstance(unit, Branch) else unit
    return Work(tuple(item.position for item in items), sum(len(item.tokens) for item in items), unit)


def _alone(items: Sequence[Item], budget: Budget) -> Iterator[list[Item]]:
    """Batches of sequences of similar length, within the budget with padding."""
    batch: list[Item] = []
    for item in sorted(items, key=lambda item: (-len(item.tokens), _order(item))):
        width = len(batch[0].tokens) if batch else len(item.tokens)
        full = (len(batch) + 1) * width
        if batch and (full > budget.tokens or full > max(budget.rows, width)):
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
    normaliser = torch.logsumexp(flat, dim=-1)
    best = flat.argmax(dim=-1)
    index = torch.from_numpy(np.concatenate([np.asarray(row) for row in rows])).to(flat.device)
    target = torch.tensor([t for item in items for t in item.targets], device=flat.device)
    values = (flat[index, target] - normaliser[index]).double().cpu().numpy()
    equal = (best[index] == target).cpu().numpy()
    if np.isnan(values).any():
        raise EvaluationError(
            Fault("logits", "the model gives NaN", "numbers", "Look for NaN in the merged weights, or use float32.")
        )
    place = 0
    for item in items:
        span = slice(place, place + len(item.targets))
        found[item.position] = Score(float(values[span].sum()), bool(equal[span].all()), len(item.targets))
        place = span.stop


def _sliding_window(config: Any) -> int | None:
    """The attention window of models that have one (trees of longer sequences would ignore it)."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    window = getattr(config, "sliding_window", None)
    return int(window) if isinstance(window, int) and window > 0 else None
