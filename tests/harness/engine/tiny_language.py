"""Tiny random language models of families that attend, place or remember tokens in other ways, and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

LENGTH = 256
WINDOW = 24
"""Shorter than some of the tested sequences; the trials of the engine see it."""


def tokenizer() -> Any:
    """One token per printable character."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {c: i for i, c in enumerate(["<bos>", "<eos>", "<unk>", *map(chr, range(32, 127))])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.decoder = decoders.Fuse()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )  # fmt: skip


SIZE = 98
ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1}
PADDED = {**ENDS, "pad_token_id": 1}
FEW: dict[str, Any] = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BASE: dict[str, Any] = {
    **FEW, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": LENGTH, "pad_token_id": 0,
    "initializer_range": 0.3, **ENDS,
}  # fmt: skip
GPT: dict[str, Any] = {
    "vocab_size": SIZE, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3, **ENDS
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 40,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
HYBRID = {
    "head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
NEO = {
    "vocab_size": SIZE, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 80,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": LENGTH, "initializer_range": 0.3, **ENDS,
}  # fmt: skip
STATE = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, **PADDED}
OPT = {**FEW, "ffn_dim": 48, "max_position_embeddings": LENGTH, "word_embed_proj_dim": 32, "init_std": 0.3, **PADDED}
BLOOM = {"vocab_size": SIZE, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3, **PADDED}
LRU = {
    **FEW, "num_hidden_layers": 3, "intermediate_size": 48, "num_key_value_heads": 1, "head_dim": 8, "lru_width": 32,
    "attention_window_size": WINDOW, **ENDS,
}  # fmt: skip


def _gemma3(window: int) -> Any:
    config = hf.Gemma3TextConfig(**BASE, head_dim=8, sliding_window=window, query_pre_attn_scalar=8)
    return hf.Gemma3ForCausalLM(config)


FAMILIES: dict[str, Callable[[], Any]] = {
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**BASE, sliding_window=64)),
    "gemma3": lambda: _gemma3(WINDOW),
    "llama_dynamic": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**{**BASE, "max_position_embeddings": 40}, rope_parameters=DYNAMIC)
    ),
    "phi3_long": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(**BASE, original_max_position_embeddings=40, rope_parameters=LONG)
    ),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(hf.GPTNeoConfig(**NEO)),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT)),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**BLOOM)),
    "mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(**STATE)),
    "rwkv": lambda: hf.RwkvForCausalLM(
        hf.RwkvConfig(vocab_size=SIZE, hidden_size=32, num_hidden_layers=2, context_length=LENGTH, **ENDS)
    ),
    "qwen3_next": lambda: hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**BASE, **HYBRID)),
}
MORE: dict[str, Callable[[], Any]] = {
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(
        **{k: v for k, v in BASE.items() if k != "num_key_value_heads"}, rotary_pct=0.25)),
    "gpt_j": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**GPT, rotary_dim=8)),
    "gpt_bigcode": lambda: hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(**GPT)),
    "falcon_alibi": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(**FEW, alibi=True, parallel_attn=False, initializer_range=0.3, **ENDS)),
    "mpt": lambda: hf.MptForCausalLM(hf.MptConfig(vocab_size=SIZE, d_model=32, n_heads=4, n_layers=2, max_seq_len=256)),
    "mistral_short": lambda: hf.MistralForCausalLM(hf.MistralConfig(**BASE, sliding_window=WINDOW)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**BASE, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8)),
    "gemma3_wide": lambda: _gemma3(64),
    "qwen2_window": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**BASE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**BASE, head_dim=8)),
    "qwen3_moe": lambda: hf.Qwen3MoeForCausalLM(
        hf.Qwen3MoeConfig(**BASE, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**BASE, sliding_window=WINDOW)),
    "cohere2": lambda: hf.Cohere2ForCausalLM(hf.Cohere2Config(**BASE, sliding_window=WINDOW, logit_scale=1.0)),
    "gpt_oss": lambda: hf.GptOssForCausalLM(hf.GptOssConfig(
        **BASE, head_dim=8, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2)),
    "recurrent_gemma": lambda: hf.RecurrentGemmaForCausalLM(hf.RecurrentGemmaConfig(**LRU)),
    "lfm2": lambda: hf.Lfm2ForCausalLM(
        hf.Lfm2Config(**BASE, layer_types=["conv", "full_attention"], conv_L_cache=3)),
    "xglm": lambda: hf.XGLMForCausalLM(hf.XGLMConfig(
        vocab_size=SIZE, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, max_position_embeddings=LENGTH,
        init_std=0.3, **PADDED)),
}  # fmt: skip


def language_model(name: str) -> Any:
    """The model, seeded."""
    torch.manual_seed(0)
    return {**FAMILIES, **MORE}[name]().float().eval()
