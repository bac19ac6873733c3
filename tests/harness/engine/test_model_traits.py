"""What architectures allow: texts are scored from left to right, or not at all."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from fusion_eval.errors import ConfigError
from fusion_eval.harness.engine.model_traits import require_causal
from tests.harness.engine import tiny_more_families as tiny

SIZES = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_is_taken_in_any_precision(dtype):
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)).eval().to(dtype)
    require_causal(model, "m")


def test_a_model_that_sees_what_follows_is_refused():
    model = hf.BertLMHeadModel(hf.BertConfig(**SIZES, initializer_range=0.2, is_decoder=False)).eval()
    with pytest.raises(ConfigError, match="model 'm', a BertLMHeadModel: logits that change with the tokens"):
        require_causal(model, "m")
    require_causal(hf.BertLMHeadModel(hf.BertConfig(**SIZES, initializer_range=0.2, is_decoder=True)).eval(), "m")


@pytest.mark.parametrize(
    ("family", "found"), [("paligemma", "change with"), ("blip2", "no text alone"), ("kosmos2", "no text alone")]
)
def test_models_of_pictures_alone_are_refused(family, found):
    model, _ = getattr(tiny, family)()
    with pytest.raises(ConfigError, match=found):
        require_causal(model.eval(), "m")


def test_a_model_that_does_without_pictures_is_taken():
    model, _ = tiny.aya_vision()
    require_causal(model.eval(), "m")
