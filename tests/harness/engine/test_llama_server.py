"""Scores from the server of llama-cpp-python, a real one that gives log-probabilities of prompts.

pip install "llama-cpp-python[server]" gguf      # builds from source, so the default suites go without
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusion_eval.harness.engine.http import UNSCORED, HttpModel
from fusion_eval.harness.engine.server import Server
from fusion_eval.harness.engine.transformers_model import TransformersModel
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler

pytestmark = pytest.mark.slow
pytest.importorskip("llama_cpp")
gguf: Any = pytest.importorskip("gguf")

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.o_proj": "attn_output",
    "self_attn.v_proj": "attn_v", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tiny_llama: Any, tokenizers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in llama.cpp's format."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokenizer, config = tokenizers["llama"], tiny_llama.config
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    _words(file, tokenizer)
    state = {name: tensor.float().numpy() for name, tensor in tiny_llama.state_dict().items()}
    for mine, theirs in (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")):
        file.add_tensor(f"{theirs}.weight", state[f"{mine}.weight"])
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for mine, theirs in NAMES.items():
            tensor = state[f"model.layers.{layer}.{mine}.weight"]
            tensor = _interleaved(tensor, heads[theirs]) if theirs in heads else tensor
            file.add_tensor(f"blk.{layer}.{theirs}.weight", tensor)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def _words(file: Any, tokenizer: Any) -> None:
    inner = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    file.add_vocab_size(len(words))
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(words)
    file.add_token_types([3 if i in tokenizer.all_special_ids else 1 for i in range(len(words))])
    file.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in inner["merges"]])
    file.add_bos_token_id(tokenizer.bos_token_id)
    file.add_eos_token_id(tokenizer.eos_token_id)
    file.add_add_bos_token(True)


def _interleaved(tensor: Any, heads: int) -> Any:
    """Rows in the order of llama.cpp's rotary embedding, halves interleaved."""
    rows = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(tensor.shape))


@pytest.fixture(scope="module")
def url(weights: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--model", str(weights), "--port", str(port), "--logits_all", "true", "--n_ctx", "256", "--n_threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_cpp.server", *words], env=dict(os.environ), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(240):
            if process.poll() is not None:
                pytest.skip(f"the server ended with {process.returncode}; is llama-cpp-python[server] installed?")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1):
                    break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def requests() -> list[Request]:
    pairs = [("The cat", " sat"), ("The cat", " ran away"), ("Import this", " and then"), ("The fox", "\nthe lazy")]
    made = [Request("loglikelihood", {}, pair, 0, ("t", i, 1)) for i, pair in enumerate([*pairs, ("", "Hello there")])]
    made.append(Request("generate_until", {}, ("The cat", {"max_gen_toks": 6, "until": ["e"]}), 0, ("t", 9, 1)))
    return made


def test_scores_and_texts_are_those_of_the_model_in_memory(
    url: str, tiny_llama: Any, tokenizers: dict[str, Any]
) -> None:
    expected, found = requests(), requests()
    Scheduler(TransformersModel(tiny_llama, tokenizers["llama"])).answer(expected)
    Scheduler(HttpModel(Server(url, "tiny", retries=0, timeout=600, concurrency=1))).answer(found)
    for mine, wanted in zip(found[:4], expected[:4], strict=True):
        assert mine.resps[0][0] == pytest.approx(wanted.resps[0][0], abs=0.02)  # it keeps keys in half precision
        assert mine.resps[0][1] == wanted.resps[0][1]
    assert found[4].marks == (UNSCORED,)
    assert found[5].resps == expected[5].resps
