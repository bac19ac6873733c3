from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from fusion_eval.errors import EvaluationError
from fusion_eval.harness.engine.causal import CausalScorer, ScorerOptions
from fusion_eval.harness.engine.protocol import Pair, Score


def score(scorer: CausalScorer, pairs: list[Pair]) -> list[Score]:
    found: dict[int, Score] = {}
    for work in scorer.plan(pairs):
        found.update(zip(work.positions, scorer.score(work), strict=True))
    return [found[i] for i in range(len(pairs))]


def pairs(size: int, seed: int = 0) -> list[Pair]:
    """Few-shot heads, questions with several choices, lone texts."""
    r = random.Random(seed)
    head = tuple(r.randrange(size) for _ in range(50))
    made = [Pair((r.randrange(size),), tuple(r.randrange(size) for _ in range(30)))]
    for _ in range(8):
        question = (*head, *(r.randrange(size) for _ in range(r.randint(1, 20))))
        made += [Pair(question, tuple(r.randrange(size) for _ in range(r.randint(1, 4)))) for _ in range(4)]
    made += [Pair(made[-1].context, made[-1].continuation), Pair(head, (3,)), Pair(head[:30], (*head[30:40], 5))]
    return made


def reference(model: Any, pair: Pair, length: int) -> Score:
    tokens = (*pair.context, *pair.continuation)[-(length + 1) :]
    with torch.inference_mode():
        logits = model(torch.tensor([tokens[:-1]])).logits[0].double().log_softmax(-1)
    own = logits[-len(pair.continuation) :]
    target = torch.tensor(pair.continuation)
    value = own.gather(1, target[:, None]).sum()
    return Score(float(value), bool((own.argmax(-1) == target).all()), len(pair.continuation))


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_llama"])
@pytest.mark.parametrize("tokens", [16, 64, 4096])
def test_trees_give_what_each_sequence_alone_gives(name: str, tokens: int, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    asked = pairs(model.config.vocab_size)
    work: dict[str, float] = {}
    scorer = CausalScorer(model, 128, ScorerOptions(tokens), work)
    assert scorer.shares
    found = score(scorer, asked)
    for pair, mine in zip(asked, found, strict=True):
        wanted = reference(model, pair, 128)
        assert mine.value == pytest.approx(wanted.value, abs=2e-4)
        assert (mine.greedy, mine.tokens) == (wanted.greedy, wanted.tokens)
    if tokens == 4096:
        alone = sum(len(p.context) + len(p.continuation) - 1 for p in asked)
        assert work["tokens_forwarded"] < alone / 3


def test_without_sharing_the_answers_are_the_same(tiny_llama: Any) -> None:
    asked = pairs(tiny_llama.config.vocab_size, 1)
    tree = score(CausalScorer(tiny_llama, 128, ScorerOptions(), {}), asked)
    plain = score(CausalScorer(tiny_llama, 128, ScorerOptions(share=False), {}), asked)
    assert [s.value for s in tree] == pytest.approx([s.value for s in plain], abs=2e-4)
    assert [s.greedy for s in tree] == [s.greedy for s in plain]


def test_contexts_are_cut_on_the_left(tiny_gpt2: Any) -> None:
    long = Pair(tuple(range(300)), (5, 6))
    (found,) = score(CausalScorer(tiny_gpt2, 128, ScorerOptions(), {}), [long])
    assert found.value == pytest.approx(reference(tiny_gpt2, long, 128).value, abs=1e-4)


def test_the_peers_shared_forward_mistake_is_not_repeated(tiny_gpt2: Any) -> None:
    """Two requests with equal inputs but other borders: each is scored at its own positions."""
    asked = [Pair((5, 6, 7), (8, 9, 10)), Pair((5, 6, 7, 8, 9), (11,))]
    found = score(CausalScorer(tiny_gpt2, 128, ScorerOptions(), {}), asked)
    assert [s.value for s in found] == pytest.approx([reference(tiny_gpt2, p, 128).value for p in asked], abs=1e-4)


def test_empty_continuations_cost_nothing(tiny_gpt2: Any) -> None:
    work: dict[str, float] = {}
    assert score(CausalScorer(tiny_gpt2, 128, ScorerOptions(share=True), work), [Pair((1,), ())]) == [
        Score(0.0, True, 0)
    ]
    assert not work


def test_numbers_that_are_none_are_an_error(tiny_gpt2: Any) -> None:
    import copy

    broken = copy.deepcopy(tiny_gpt2)
    torch.nn.init.constant_(broken.transformer.h[1].mlp.c_proj.weight, float("nan"))
    with pytest.raises(EvaluationError, match="NaN"):
        score(CausalScorer(broken, 128, ScorerOptions(share=True), {}), pairs(100))


def test_passes_are_halved_when_memory_runs_out(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pairs(tiny_llama.config.vocab_size)
    scorer = CausalScorer(tiny_llama, 128, ScorerOptions(4096, share=True), {})
    expected = score(scorer, asked)
    forward = type(tiny_llama).forward

    def limited(self: Any, input_ids: Any, **options: Any) -> Any:
        if input_ids.numel() > 90:
            raise torch.OutOfMemoryError("too large")
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(tiny_llama, "forward", limited.__get__(tiny_llama))
    small = CausalScorer(tiny_llama, 128, ScorerOptions(4096, share=True), {})
    small.runner._cache, small.runner._keeps_logits = scorer.runner._cache, True
    assert [s.value for s in score(small, asked)] == pytest.approx([s.value for s in expected], abs=2e-4)
    assert small.runner.budget.tokens < 4096
    with pytest.raises(EvaluationError, match="does not suffice for one sequence of 119 tokens"):
        score(small, [Pair(tuple(range(118)), (1, 2))])
