"""Sends the requests of all tasks to a model: each question once, in units that ranks share and a store keeps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fusion_eval.errors import DataError, Fault
from fusion_eval.harness.engine.encoder import EMPTY
from fusion_eval.harness.engine.protocol import LanguageModel, Pair, PartialScorer, Prompt, Score, Work
from fusion_eval.harness.media import Asked, Conversation
from fusion_eval.harness.request import Request, RollingScore
from fusion_eval.harness.store import AnswerStore

H = TypeVar("H", bound=Hashable)
Gather = Callable[[Any], list[Any]]
Progress = Callable[[str, int, int], None]


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run.

    Args:
        rank: of this one.
        world_size: how many there are.
        gather: an object of this rank -> the list of all ranks' objects, on every rank.
    """

    rank: int = 0
    world_size: int = 1
    gather: Gather = _alone


@dataclass(slots=True)
class Scheduler:
    """Answers requests.

    Args:
        model: the engine.
        store: where answers are kept; None to keep none.
        ranks: the processes of the run.
        progress: told (kind, units done, units in all).
    """

    model: LanguageModel
    store: AnswerStore | None = None
    ranks: Ranks = field(default_factory=Ranks)
    progress: Progress | None = None

    def answer(self, requests: Sequence[Request], seed: int = 0) -> None:
        """Fill `resps` (and `marks`) of every request, in order.

        Args:
            requests: of any tasks and types.
            seed: of sampled text; repeat k of a request draws with seed + k.

        Raises:
            DataError: a request of an unknown type, or a document whose continuations are all empty.
        """
        known = {"loglikelihood", "loglikelihood_rolling", "generate_until"}
        for request in requests:
            if request.request_type not in known:
                raise DataError(Fault(f"task '{request.task_name}'", f"asks for '{request.request_type}'",
                                      f"one of {', '.join(sorted(known))}"))  # fmt: skip
        scored = [r for r in requests if r.request_type != "generate_until"]
        if scored:
            self._score(scored)
        prompted = [r for r in requests if r.request_type == "generate_until"]
        if prompted:
            self._generate(prompted, seed)

    def _score(self, requests: Sequence[Request]) -> None:
        pieces = self._pieces(requests)
        _check_empty(requests, pieces)
        distinct, places = _distinct([piece for row in pieces for piece in row])
        answers = self._run("score", self.model.plan_scores(distinct), distinct, self.model.score)
        index = iter(places)
        for request, row in zip(requests, pieces, strict=True):
            found: list[Score] = [answers[next(index)] for _ in row]
            request.marks = tuple(dict.fromkeys(piece.mark for piece in row if piece.mark))
            total = sum(score.value for score in found)
            if request.request_type == "loglikelihood_rolling":
                response: Any = RollingScore(total, sum(score.tokens for score in found))
            else:
                response = (total, all(score.greedy for score in found))
            request.resps = [response] * (request.repeats or 1)

    def _pieces(self, requests: Sequence[Request]) -> list[list[Pair]]:
        pairs = [r for r in requests if r.request_type == "loglikelihood"]
        texts = [r for r in requests if r.request_type == "loglikelihood_rolling"]
        found: dict[int, list[Pair]] = {}
        if pairs:
            rows = self.model.encode_pairs([(_asked(r), _text(r, 1)) for r in pairs])
            found.update({id(r): row for r, row in zip(pairs, rows, strict=True)})
        if texts:
            rows = self.model.encode_texts([_text(r, 0) for r in texts])
            found.update({id(r): row for r, row in zip(texts, rows, strict=True)})
        return [found[id(r)] for r in requests]

    def _generate(self, requests: Sequence[Request], seed: int) -> None:
        asked = [
            (_asked(request), dict(request.args[1]), seed + repeat)
            for request in requests
            for repeat in range(request.repeats or 1)
        ]
        prompts = self.model.encode_prompts(asked)
        distinct, places = _distinct(prompts)
        answers = self._run("generate", self.model.plan_prompts(distinct), distinct, self.model.generate)
        index = iter(places)
        row = iter(prompts)
        for request in requests:
            marks = []
            request.resps = []
            for _ in range(request.repeats or 1):
                request.resps.append(answers[next(index)])
                marks.append(next(row).mark)
            request.marks = tuple(dict.fromkeys(mark for mark in marks if mark))

    def _run(
        self, kind: str, works: Sequence[Work], pieces: Sequence[Pair | Prompt], run: Callable[[Work], Sequence[Any]]
    ) -> list[Any]:
        """Answers of all pieces; this rank computes its share, in an order that is the same on every rank."""
        mine = share(works, self.ranks)
        own: dict[int, Any] = {}
        for done, number in enumerate(mine, 1):
            work = works[number]
            answers = self._answers(work, pieces, run)
            own.update(zip(work.positions, answers, strict=True))
            if self.progress:
                self.progress(kind, done, len(mine))
        gathered: dict[int, Any] = {}
        for part in self.ranks.gather(own):
            gathered.update(part)
        return [gathered[position] for position in range(len(pieces))]

    def _answers(
        self, work: Work, pieces: Sequence[Pair | Prompt], run: Callable[[Work], Sequence[Any]]
    ) -> Sequence[Any]:
        """Answers of a unit: known ones from the store, new ones kept there as they come."""
        if self.store is None:
            return run(work)
        store, asked = self.store, [pieces[position] for position in work.positions]
        kept = store.known(asked)
        if len(kept) == len(asked):
            return [kept[place] for place in range(len(asked))]
        if not isinstance(self.model, PartialScorer) or isinstance(asked[0], Prompt):
            answers = run(work)
            store.put(asked, answers)
            return answers
        known: dict[int, Any] = {work.positions[place]: answer for place, answer in kept.items()}
        return self.model.score_rest(
            work, known, lambda told: store.put([pieces[position] for position in told], list(told.values()))
        )


def share(works: Sequence[Work], ranks: Ranks) -> list[int]:
    """The units of this rank: dearest first, each to the rank with the least to do so far."""
    loads = [0] * ranks.world_size
    mine = []
    for number in sorted(range(len(works)), key=lambda i: (-works[i].cost, i)):
        rank = loads.index(min(loads))
        loads[rank] += works[number].cost + 1
        if rank == ranks.rank:
            mine.append(number)
    return mine


def _asked(request: Request) -> Asked:
    value = request.args[0]
    return value if isinstance(value, Conversation) else _text(request, 0)


def _text(request: Request, position: int) -> str:
    value = request.args[position]
    if not isinstance(value, str):
        where = f"task '{request.task_name}', document {request.doc_id}"
        what = "the continuation" if position else "the prompt"
        raise DataError(Fault(where, f"{what} is {value!r} ({type(value).__name__})", "a string"))
    return value


def _distinct(items: Iterable[H]) -> tuple[list[H], list[int]]:
    """Different items in order, and the place of each given one among them."""
    places: dict[H, int] = {}
    order = [places.setdefault(item, len(places)) for item in items]
    return list(places), order


def _check_empty(requests: Sequence[Request], pieces: Sequence[Sequence[Pair]]) -> None:
    """A document whose continuations are all empty has nothing to score."""
    full: set[tuple[Any, Any]] = set()
    empty: dict[tuple[Any, Any], Request] = {}
    for request, row in zip(requests, pieces, strict=True):
        if request.request_type == "loglikelihood":
            document = (request.task_name, request.doc_id)
            if row and all(piece.mark == EMPTY for piece in row):
                empty.setdefault(document, request)
            else:
                full.add(document)
    faults = [
        Fault(f"task '{task}', document {doc_id}", "all continuations are empty", "text to score",
              "Look at doc_to_choice, doc_to_target and target_delimiter.")
        for task, doc_id in empty if (task, doc_id) not in full
    ]  # fmt: skip
    if faults:
        raise DataError(*faults)
