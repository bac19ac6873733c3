from __future__ import annotations

from typing import Any

import pytest
import torch

from fusion_eval.harness.engine.causal import ScorerOptions
from fusion_eval.harness.engine.encoder import Encoder
from fusion_eval.harness.engine.seq2seq import Seq2SeqModel
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler


@pytest.fixture(scope="module")
def t5(tokenizers: dict[str, Any]) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    tokenizer = tokenizers["gpt2"]
    config = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4, decoder_start_token_id=0,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def reference(model: Any, context: list[int], target: list[int]) -> tuple[float, bool]:
    with torch.inference_mode():
        logits = model(
            input_ids=torch.tensor([context]), decoder_input_ids=torch.tensor([[0, *target[:-1]]])
        ).logits[0].log_softmax(-1)  # fmt: skip
    index = torch.tensor(target)
    return float(logits.gather(1, index[:, None]).sum()), bool((logits.argmax(-1) == index).all())


@pytest.mark.parametrize("tokens", [8, 4096])
def test_scores_are_those_of_each_pair_alone(t5: Any, tokenizers: dict[str, Any], tokens: int) -> None:
    encoder = Encoder(tokenizers["gpt2"], 64, causal=False)
    model = Seq2SeqModel(t5, tokenizers["gpt2"], encoder=encoder, options=ScorerOptions(tokens))
    pairs = [(c, t) for c in ("The cat sat", "A dog", "The cat sat on the mat") for t in (" here", " and there", "x")]
    asked = [Request("loglikelihood", {}, pair, i, ("t", i, 1)) for i, pair in enumerate(pairs)]
    Scheduler(model).answer(asked)
    for request, pair in zip(asked, pairs, strict=True):
        ((piece,),) = encoder.pairs([pair])
        value, greedy = reference(t5, list(piece.context), list(piece.continuation))
        assert request.resps[0][0] == pytest.approx(value, abs=1e-3)
        assert request.resps[0][1] == greedy


def test_generation(t5: Any, tokenizers: dict[str, Any]) -> None:
    whole = Seq2SeqModel(t5, tokenizers["gpt2"], max_length=64)
    alone = Seq2SeqModel(t5, tokenizers["gpt2"], max_length=64, batch_size=1)
    texts = ["The cat", "A much longer prompt than the other", "x"]
    found = []
    for model in (whole, alone):
        asked = [Request("generate_until", {}, (t, {"max_gen_toks": 6, "until": ["q"]}), 0, ("t", 0, 1)) for t in texts]
        Scheduler(model).answer(asked)
        found.append([request.resps[0] for request in asked])
    assert found[0] == found[1]
