from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.engine.encoder import EMPTY
from fusion_eval.harness.engine.generation import frozen, normalise
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Ranks, Scheduler, share
from fusion_eval.harness.store import AnswerStore


class Echo:
    """Scores a continuation by its length; fails after `patience` units."""

    name, fingerprint = "echo", "echo"

    def __init__(self, patience: int = 10**6) -> None:
        self.work: dict[str, float] = {}
        self.asked: list[Any] = []
        self.patience = patience

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[list[Pair]]:
        return [[Pair(context, cont, "" if cont else EMPTY)] for context, cont in pairs]

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        return [[Pair("", part, "window") for part in text.split()] for text in texts]

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        places = range(len(pieces))
        return [Work(tuple(places[i : i + 2]), i, [pieces[j] for j in places[i : i + 2]]) for i in places[::2]]

    def score(self, work: Work) -> list[Score]:
        self.patience -= 1
        if self.patience < 0:
            raise KeyboardInterrupt
        self.asked += work.payload
        return [Score(-float(len(piece.continuation)), piece.continuation == "a", 1) for piece in work.payload]

    def encode_prompts(self, prompts: Sequence[tuple[str, dict[str, Any], int]]) -> list[Prompt]:
        made = [(text, normalise(settings), seed) for text, settings, seed in prompts]
        return [Prompt(t, None, frozen(s), seed if s.sampled else None) for t, s, seed in made]

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        return [Work((i,), 1, prompt) for i, prompt in enumerate(prompts)]

    def generate(self, work: Work) -> list[str]:
        self.asked.append(work.payload)
        return [f"{work.payload.text}/{work.payload.seed}"]

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return ""


def requests() -> list[Request]:
    pairs = [Request("loglikelihood", {}, ("q", c), i, ("t", 0, 1)) for i, c in enumerate(["a", "bb", "a", "ccc"])]
    texts = [Request("loglikelihood_rolling", {}, ("x yy zzz",), 0, ("t", 1, 1))]
    greedy = [Request("generate_until", {}, ("p", {"do_sample": False}), 0, ("t", 2, 3))]
    drawn = [Request("generate_until", {}, ("p", {"temperature": 1.0}), 0, ("t", 3, 2))]
    return [*pairs, *texts, *greedy, *drawn]


def responses(asked: Sequence[Request]) -> list[Any]:
    return [request.resps for request in asked]


def test_each_distinct_question_is_asked_once() -> None:
    model, asked = Echo(), requests()
    Scheduler(model).answer(asked, seed=5)
    assert responses(asked) == [
        [(-1.0, True)], [(-2.0, False)], [(-1.0, True)], [(-3.0, False)], [-6.0], ["p/None"] * 3, ["p/5", "p/6"],
    ]  # fmt: skip
    assert len(model.asked) == 3 + 3 + 1 + 2
    assert asked[4].resps[0].tokens == 3
    assert asked[4].marks == ("window",)


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_ranks_gives_the_same(world: int) -> None:
    alone = requests()
    Scheduler(Echo()).answer(alone)
    boxes: dict[int, dict[int, list[Any]]] = {}

    def rank_run(rank: int, known: list[list[Any]] | None) -> list[Request]:
        sent = boxes.setdefault(rank, {})

        def gather(own: Any) -> list[Any]:
            step = len(sent)
            sent[step] = own
            return [own] if known is None else known[step]

        asked = requests()
        Scheduler(Echo(), ranks=Ranks(rank, world, gather)).answer(asked)
        return asked

    for rank in range(world):
        with contextlib.suppress(KeyError):  # the first exchange lacks the other ranks' answers
            rank_run(rank, None)
    first = [boxes[rank][0] for rank in range(world)]
    assert sorted(i for part in first for i in part) == list(range(6))
    assert all(first)
    seconds = []
    for rank in range(world):
        boxes[rank] = {}
        with contextlib.suppress(IndexError):
            rank_run(rank, [first])
        seconds.append(boxes[rank][1])
    for rank in range(world):
        boxes[rank] = {}
        assert responses(rank_run(rank, [first, seconds])) == responses(alone)


def test_units_are_dealt_evenly() -> None:
    works = Echo().plan_scores([Pair("q", str(i)) for i in range(21)])
    shares = [share(works, Ranks(rank, 3)) for rank in range(3)]
    assert sorted(i for s in shares for i in s) == list(range(len(works)))
    costs = [sum(works[i].cost for i in s) for s in shares]
    assert max(costs) - min(costs) <= max(work.cost for work in works)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = requests()
    Scheduler(Echo()).answer(whole)
    first = Echo(patience=1)
    with pytest.raises(KeyboardInterrupt):
        Scheduler(first, AnswerStore(tmp_path, "m")).answer(requests())
    second, again = Echo(), requests()
    Scheduler(second, AnswerStore(tmp_path, "m")).answer(again)
    assert responses(again) == responses(whole)
    assert not {id(p) for p in second.asked} & {id(p) for p in first.asked}
    assert len(first.asked) + len(second.asked) == 9
    third, last = Echo(), requests()
    Scheduler(third, AnswerStore(tmp_path, "m")).answer(last)
    assert third.asked == []
    assert responses(last) == responses(whole)


def test_another_model_never_reads_the_answers(tmp_path: Path) -> None:
    Scheduler(Echo(), AnswerStore(tmp_path, "m")).answer(requests())
    other = Echo()
    Scheduler(other, AnswerStore(tmp_path, "n")).answer(requests())
    assert other.asked


def test_a_line_cut_short_is_ignored(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, "m")
    store.put([Pair("q", "a")], [Score(-1.0, True, 1)])
    with store.file.open("a") as file:
        file.write('{"half": {"val')
    again = AnswerStore(tmp_path, "m")
    assert len(again) == 1
    again.put([Pair("q", "b")], [Score(-2.0, True, 1)])
    assert len(AnswerStore(tmp_path, "m")) == 2


def test_seeds_settings_and_texts_have_keys_of_their_own() -> None:
    from fusion_eval.harness.store import key_of

    greedy, warm = frozen(normalise({})), frozen(normalise({"temperature": 0.5}))
    pieces = [
        Pair((1, 2), (3,)), Pair((1,), (2, 3)), Prompt("a", None, greedy), Prompt("b", None, greedy),
        Prompt("a", None, warm, 1), Prompt("a", None, warm, 2), Prompt("a", (1, 2, 3), greedy),
    ]  # fmt: skip
    assert len({key_of(piece) for piece in pieces}) == len(pieces)


def test_documents_with_nothing_to_score_are_named() -> None:
    asked = [Request("loglikelihood", {}, ("q", ""), i, ("task", 7, 1)) for i in range(2)]
    with pytest.raises(DataError, match="task 'task', document 7: all continuations are empty"):
        Scheduler(Echo()).answer(asked)
    asked[0].arguments = ("q", "a")
    Scheduler(Echo()).answer(asked)
    assert asked[1].marks == (EMPTY,)


def test_wrong_requests_are_named() -> None:
    with pytest.raises(DataError, match="asks for 'generate'"):
        Scheduler(Echo()).answer([Request("generate", {}, ("q",), 0, ("t", 0, 1))])
    with pytest.raises(DataError, match=r"document 3: the continuation is 5 \(int\)"):
        Scheduler(Echo()).answer([Request("loglikelihood", {}, ("q", 5), 0, ("t", 3, 1))])
