"""Code tasks on two processes: generations are shared out, programs run on rank zero, the report is one process's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fusion_eval.sandbox.level import find_layers

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(not find_layers().holds, reason="nothing here to run untrusted code under"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base and expert with a byte-level tokenizer."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as kinds
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models")
    letters = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(kinds.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=2048, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    for seed, name in enumerate(("base", "expert")):
        torch.manual_seed(seed)
        GPT2LMHeadModel(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def results(models: Path, repo_root: Path, place: Path, *words: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(repo_root), "OMP_NUM_THREADS": "1"}
    place.mkdir()
    command = [
        sys.executable, "-m", "fusion_eval", "method=simple_average", "modelpool=huggingface",
        f"modelpool.base={models}/base", f"modelpool.experts={{one: {models}/expert}}",
        "modelpool.auto_class=AutoModelForCausalLM", "taskpool=code", "taskpool.tasks=[humaneval,parity]",
        f"taskpool.data_root={repo_root}/tests/assets/code", "taskpool.allow_code_execution=true",
        "taskpool.generation={n_samples: 3, temperature: 1.0, max_new_tokens: 8}", f"taskpool.answers={place}/answers",
        "taskpool.sandbox={workers: 1, cache: null}", f"output={place}/out", "progress=false", *words,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((place / "out" / "report.json").read_text())
    assert report["status"] == "complete"
    written = {path.name: path.read_text() for path in sorted((place / "out" / "generations").rglob("*.jsonl"))}
    assert set(written) == {"humaneval.jsonl", "parity.jsonl"}
    assert all(len(set(text.splitlines())) > 10 for text in written.values())
    tasks = report["models"]["merged"]["tasks"]
    return {"metrics": {name: task["metrics"] for name, task in tasks.items()}, "written": written}


def test_two_processes_write_and_score_as_one(models: Path, repo_root: Path, tmp_path: Path) -> None:
    single = results(models, repo_root, tmp_path / "one")
    assert results(models, repo_root, tmp_path / "two", "fabric=cpu2") == single
