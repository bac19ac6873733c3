"""Every family gets the scores of one plain pass per request and the text of the library's own `generate`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from fusion_eval.harness.engine.model_traits import forget_length, length_bound
from fusion_eval.harness.engine.protocol import Pair, Score
from fusion_eval.harness.engine.transformers_model import TransformersModel
from tests.harness.engine.tiny_language import FAMILIES, LENGTH, MORE, SIZE, language_model, tokenizer

TEXTS = ["Hello there", "a", "The quick brown fox jumps over the lazy dog, again", "The quick brown", "x" * 90]
ALL = [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]


def pairs() -> list[Pair]:
    """Shared heads, lone short texts, contexts beyond every window and beyond the model."""
    r = random.Random(0)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(r.randrange(3, SIZE) for _ in range(n))

    head, short, long = draw(50), draw(10), draw(110)
    made = [Pair(draw(1), draw(30)), Pair(draw(1), draw(3))]
    for _ in range(3):
        question = (*head, *draw(r.randint(1, 20)))
        made += [Pair(question, draw(r.randint(1, 4))) for _ in range(3)]
    made += [Pair((*short, *draw(3)), draw(2)) for _ in range(4)]
    return [*made, Pair(long, draw(2)), Pair(long, draw(3)), Pair(draw(300), draw(4))]


def alone(model: Any, pair: Pair) -> Score:
    forget_length(length_bound(model))
    tokens = (*pair.context, *pair.continuation)[-(LENGTH + 1) :]
    with torch.inference_mode():
        logits = model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0].double().log_softmax(-1)
    own, target = logits[-len(pair.continuation) :], torch.tensor(pair.continuation)
    greedy = bool((own.argmax(-1) == target).all())
    return Score(float(own.gather(1, target[:, None]).sum()), greedy, len(pair.continuation))


def written(model: Any, tok: Any, text: str, new: int) -> str:
    forget_length(length_bound(model))
    tokens = tok(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        output = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, do_sample=False, pad_token_id=1
        )
    return str(tok.decode(output[0, tokens.shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize("name", ALL)
def test_scores_are_those_of_one_pass_per_request(name: str) -> None:
    model, asked = language_model(name), pairs()
    engine = TransformersModel(model, tokenizer(), max_length=LENGTH)
    found: dict[int, Score] = {}
    for work in engine.plan_scores(asked):
        found.update(zip(work.positions, engine.score(work), strict=True))
    for i, pair in enumerate(asked):
        wanted = alone(model, pair)
        assert found[i].value == pytest.approx(wanted.value, abs=1e-4), len(pair.context)
        assert (found[i].greedy, found[i].tokens) == (wanted.greedy, wanted.tokens)


@pytest.mark.parametrize("name", ALL)
def test_text_is_the_librarys(name: str) -> None:
    model, tok = language_model(name), tokenizer()
    engine = TransformersModel(model, tok, max_length=LENGTH)
    prompts = engine.encode_prompts([(text, {"until": [], "max_gen_toks": 10}, 0) for text in TEXTS])
    found: dict[int, str] = {}
    for work in engine.plan_prompts(prompts):
        found.update(zip(work.positions, engine.generate(work), strict=True))
    assert [found[i] for i in range(len(TEXTS))] == [written(model, tok, text, 10) for text in TEXTS]
