"""The recorded runs of lm_eval 0.4.13, unpacked, and tiny models with its tokenizers."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.harness.dataset import DataSource
from tests.harness.replay import Oracle


@pytest.fixture(scope="session")
def oracle(assets_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """tasks, data, tokenizers and recorded runs."""
    root = tmp_path_factory.mktemp("oracle")
    with tarfile.open(assets_dir / "harness" / "oracle.tar.xz") as tar:
        tar.extractall(root, filter="data")
    for file in (*root.glob("tasks/*"), *root.glob("runs/*/results.json")):
        file.write_text(file.read_text(encoding="utf-8").replace("@ROOT@", str(root)), encoding="utf-8")
    return Oracle(root)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    return DataSource(cache_dir=tmp_path_factory.mktemp("datasets"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSION_EVAL_CACHE", str(tmp_path_factory.getbasetemp() / "fusion_eval_cache"))


@pytest.fixture(scope="session")
def tokenizers(oracle: Oracle) -> dict[str, Any]:
    return {name: oracle.tokenizer(name) for name in ("gpt2", "llama")}


@pytest.fixture(scope="session")
def tiny_gpt2(tokenizers: dict[str, Any]) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    size = len(tokenizers["gpt2"])
    return GPT2LMHeadModel(GPT2Config(vocab_size=size, n_positions=128, n_embd=32, n_layer=2, n_head=2)).eval()


@pytest.fixture(scope="session")
def tiny_llama(tokenizers: dict[str, Any]) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    tokenizer = tokenizers["llama"]
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()
