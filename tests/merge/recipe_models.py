"""The tiny Llamas of the recorded mergekit runs, made again: every value follows from the model's and tensor's name."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

SPREAD = {"a": 0.002, "b": 0.004, "c": 0.008, "d": 0.03}
HIDDEN, INNER, KEYS = 64, 128, 32
KEPT, STEP = 24, 7919


def shapes(layers: int = 4, vocab: int = 128) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, HIDDEN)}
    for number in range(layers):
        prefix = f"model.layers.{number}."
        found |= {
            f"{prefix}input_layernorm.weight": (HIDDEN,),
            f"{prefix}mlp.down_proj.weight": (HIDDEN, INNER),
            f"{prefix}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{prefix}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}self_attn.k_proj.weight": (KEYS, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": (KEYS, HIDDEN),
        }
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (vocab, HIDDEN)}


def noise(shape: tuple[int, ...], key: str, std: float) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(shape, generator=generator) * std


def tensor(model: str, name: str, shape: tuple[int, ...]) -> Tensor:
    if model == "e":
        return noise(shape, f"tiny|e|{name}", 0.02)
    base = noise(shape, f"tiny|base|{name}", 0.02 if len(shape) > 1 else 0.05) + (1.0 if len(shape) == 1 else 0.0)
    if model == "neg":
        return base - noise(shape, f"tiny|a|{name}", SPREAD["a"])
    if model == "sp":
        delta, keep = noise(shape, f"tiny|sp|{name}", 0.01), noise(shape, f"tiny|spm|{name}", 1.0) > 1.2816
        return base + delta * keep
    return base if model == "base" else base + noise(shape, f"tiny|{model}|{name}", SPREAD[model])


def config(layers: int, vocab: int, tied: bool, dtype: str) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "dtype": dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def write_model(
    folder: Path,
    model: str,
    dtype: torch.dtype = torch.float32,
    *,
    layers: int = 4,
    vocab: int = 128,
    tied: bool = False,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor(model, name, shape).to(dtype)
        for name, shape in shapes(layers, vocab).items()
        if not (tied and name == "lm_head.weight")
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    words = config(layers, vocab, tied, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(words))
    return folder


def write_tokenizer(folder: Path, extra: list[str], size: int, shift: int = 0) -> None:
    """A BPE tokenizer with `size` ids, as files."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["<unk>", "<s>", "</s>", *letters[shift:], *letters[:shift]]
    vocab = {token: number for number, token in enumerate(words)}
    merges = []
    for first in "abcdefghij":
        for second in "tuvwx":
            if len(vocab) + len(extra) < size:
                merges.append([first, second])
                vocab[first + second] = len(vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = {token: vocab[token] for token in ("<unk>", "<s>", "</s>")}
    special |= {token: len(vocab) + number for number, token in enumerate(extra)}
    assert len(vocab) + len(extra) == size
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **flags} for token, number in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {**model, "vocab": vocab, "merges": merges},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "unk_token": "<unk>"}))


def write_all(root: Path) -> Path:
    """Every model of the recorded runs."""
    kinds = {"f32": torch.float32, "b16": torch.bfloat16}
    for kind, dtype in kinds.items():
        for model in ("base", "a", "b", "c", "d", "e", "neg", "sp"):
            write_tokenizer(write_model(root / f"{kind}_{model}", model, dtype), ["<x0>"], 128)
    write_tokenizer(write_model(root / "f16_a", "a", torch.float16), ["<x0>"], 128)
    for model in ("base", "a", "b"):
        write_tokenizer(write_model(root / f"f32_tied_{model}", model, tied=True), ["<x0>"], 128)
    write_tokenizer(write_model(root / "f32_v136", "b", vocab=136), ["<x0>", "<im_start>", "<im_end>"], 136, shift=7)
    write_model(root / "f32_l6", "b", layers=6)
    return root


def sampled(tensor: Tensor) -> Tensor:
    """The values that were recorded of a tensor, in its dtype."""
    return tensor.reshape(-1)[torch.arange(min(KEPT, tensor.numel())) * STEP % tensor.numel()]
