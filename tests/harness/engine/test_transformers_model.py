from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from fusion_eval.errors import EvaluationError
from fusion_eval.harness.engine.causal import ScorerOptions
from fusion_eval.harness.engine.generation import cut
from fusion_eval.harness.engine.transformers_model import TransformersModel, weights_digest
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler
from fusion_eval.harness.store import AnswerStore

TEXTS = ["The quick brown fox", "The quick brown fox jumps over", "Import this, and then", "a", "The quick brown dog"]


def engine(model: Any, tokenizer: Any, **options: Any) -> TransformersModel:
    return TransformersModel(model, tokenizer, max_length=128, **options)


def generate(model: TransformersModel, texts: list[str], settings: dict[str, Any], seed: int = 0) -> list[str]:
    prompts = model.encode_prompts([(text, settings, seed) for text in texts])
    found: dict[int, str] = {}
    for work in model.plan_prompts(prompts):
        found.update(zip(work.positions, model.generate(work), strict=True))
    return [found[i] for i in range(len(texts))]


def alone(model: Any, tokenizer: Any, text: str, new: int, stops: list[str]) -> str:
    tokens = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        output = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
    written = tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)
    return cut(written, [*stops, tokenizer.eos_token])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("batch", [1, 2, "auto"])
@pytest.mark.parametrize("share", [True, False])
def test_greedy_text_is_the_librarys_at_any_batch_size(
    name: str, batch: int | str, share: bool, tokenizers: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model, tokenizer = request.getfixturevalue(f"tiny_{name}"), tokenizers[name]
    stops = ["e", " th"]
    mine = generate(
        engine(model, tokenizer, batch_size=batch, options=ScorerOptions(32, share)), TEXTS,
        {"until": stops, "max_gen_toks": 12, "do_sample": False},
    )  # fmt: skip
    assert mine == [alone(model, tokenizer, text, 12, stops) for text in TEXTS]


def test_sampled_text_depends_on_the_seed_alone(tiny_llama: Any, tokenizers: dict[str, Any]) -> None:
    settings = {"until": [], "max_gen_toks": 6, "do_sample": True, "temperature": 1.5, "top_p": 0.9}
    whole = generate(engine(tiny_llama, tokenizers["llama"]), TEXTS, settings, 1)
    single = [generate(engine(tiny_llama, tokenizers["llama"], batch_size=1), [t], settings, 1)[0] for t in TEXTS]
    assert whole == single
    assert whole != generate(engine(tiny_llama, tokenizers["llama"]), TEXTS, settings, 2)


def test_a_prompt_that_is_too_long_is_cut_and_marked(tiny_gpt2: Any, tokenizers: dict[str, Any]) -> None:
    model = engine(tiny_gpt2, tokenizers["gpt2"])
    (prompt,) = model.encode_prompts([("word " * 300, {"max_gen_toks": 28}, 0)])
    assert prompt.tokens is not None
    assert len(prompt.tokens) == 100
    assert prompt.mark == "context truncated"
    with pytest.raises(EvaluationError, match="less than 128"):
        model.encode_prompts([("a", {"max_gen_toks": 128}, 0)])


def test_beams_go_through_the_librarys_own_generate(tiny_llama: Any, tokenizers: dict[str, Any]) -> None:
    texts = generate(
        engine(tiny_llama, tokenizers["llama"]), TEXTS[:2], {"num_beams": 2, "max_gen_toks": 4, "until": []}
    )
    assert all(isinstance(text, str) for text in texts)


def test_chat_templates(tiny_llama: Any, tiny_gpt2: Any, tokenizers: dict[str, Any]) -> None:
    model = engine(tiny_llama, tokenizers["llama"])
    messages = [{"role": "user", "content": "hi"}]
    assert model.apply_chat_template(messages).endswith("<|ast|>")
    with pytest.raises(EvaluationError, match="no chat template"):
        engine(tiny_gpt2, tokenizers["gpt2"]).apply_chat_template(messages)


def test_digests_see_every_weight(tiny_gpt2: Any) -> None:
    other = copy.deepcopy(tiny_gpt2)
    assert weights_digest(other) == weights_digest(tiny_gpt2)
    with torch.no_grad():
        other.transformer.h[0].mlp.c_fc.weight[3, 5] += 1e-6
    assert weights_digest(other) != weights_digest(tiny_gpt2)
    with torch.no_grad():  # a swap keeps the plain sum
        weight = tiny_gpt2.transformer.h[0].mlp.c_fc.weight
        other.transformer.h[0].mlp.c_fc.weight.copy_(weight)
        other.transformer.h[0].mlp.c_fc.weight[0, 0], other.transformer.h[0].mlp.c_fc.weight[0, 1] = (
            weight[0, 1].clone(), weight[0, 0].clone(),
        )  # fmt: skip
    assert weights_digest(other) != weights_digest(tiny_gpt2)
    assert weights_digest(tiny_gpt2, "a") != weights_digest(tiny_gpt2, "b")


class Killed(BaseException):
    """Stands for a signal."""


def test_what_a_killed_unit_had_answered_is_not_asked_again(
    tiny_llama: Any, tokenizers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "The quick brown fox jumps over the lazy dog. " * 6

    def asked() -> list[Request]:
        pairs = [(f"{head}{i} is", f" number {i}{tail}") for i in range(30) for tail in ("", " or so")]
        return [Request("loglikelihood", {}, pair, 0, ("t", i, 1)) for i, pair in enumerate(pairs)]

    def model() -> TransformersModel:
        return TransformersModel(tiny_llama, tokenizers["llama"], options=ScorerOptions(40, True))

    whole = asked()
    first = model()
    assert len(first.plan_scores([p for row in first.encode_pairs([r.args for r in whole]) for p in row])) == 1
    Scheduler(first).answer(whole)
    second = model()
    forward = second.scorer.runner._call
    passes: list[int] = []

    def dying(*given: Any) -> Any:
        if len(passes) == 4:
            raise Killed
        passes.append(1)
        return forward(*given)

    monkeypatch.setattr(second.scorer.runner, "_call", dying)
    with pytest.raises(Killed):
        Scheduler(second, AnswerStore(tmp_path, second.fingerprint)).answer(asked())
    third, again = model(), asked()
    kept = len(AnswerStore(tmp_path, third.fingerprint))
    assert 0 < kept < len(again)
    Scheduler(third, AnswerStore(tmp_path, third.fingerprint)).answer(again)
    assert [r.resps for r in again] == [r.resps for r in whole]
    prefix = 1
    assert third.work["forward_passes"] == first.work["forward_passes"] - (len(passes) - prefix)
    fourth, last = model(), asked()
    Scheduler(fourth, AnswerStore(tmp_path, fourth.fingerprint)).answer(last)
    assert "forward_passes" not in fourth.work
    assert [r.resps for r in last] == [r.resps for r in whole]
