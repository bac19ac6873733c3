"""Language tasks with the real engine: one, two and three processes, killed and resumed, all give the same report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.dist

WORDS = "the red ship moves under bright water and seven green houses run before noon"
TASKS = {
    "choice": """
output_type: multiple_choice
num_fewshot: 2
doc_to_text: "{{passage}} {{q}}"
doc_to_choice: choices
doc_to_target: gold
""",
    "whole": "output_type: loglikelihood_rolling\ndoc_to_text: passage\n",
    "greedy": """
doc_to_text: q
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["e"], max_gen_toks: 12}
""",
    "drawn": """
doc_to_text: q
doc_to_target: "{{choices[0]}}"
repeats: 2
generation_kwargs: {until: [], do_sample: true, temperature: 1.0, max_gen_toks: 8}
""",
}


DYING = """
import os, signal
from fusion_eval.cli import main
from fusion_eval.harness.store import AnswerStore

put, calls = AnswerStore.put, []
def dying(self, *given):
    put(self, *given)
    calls.append(given)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

AnswerStore.put = dying
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny models with a byte-level tokenizer, documents and four tasks."""
    place = tmp_path_factory.mktemp("ranks")
    _models(place)
    words = WORDS.split()
    rows = [
        {
            "passage": " ".join(words[(i * k) % len(words)] for k in range(1, 12 + i % 9)),
            "q": f"What is {words[i % len(words)]} {i}?",
            "choices": [words[i % 5], words[5 + i % 7]],
            "gold": i % 2,
        }
        for i in range(23)
    ]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        (place / "tasks").mkdir(exist_ok=True)
        (place / "tasks" / f"{name}.yaml").write_text(f"task: {name}\ndataset_path: ../rows.jsonl\n{text}")
    return place


def _models(place: Path) -> None:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as kinds
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(kinds.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    kind: Any = PreTrainedTokenizerFast
    tokenizer = kind(tokenizer_object=inner, bos_token="<|end|>", eos_token="<|end|>")
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    for seed, name in enumerate(("base", "expert")):
        torch.manual_seed(seed)
        GPT2LMHeadModel(config).save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)


def command(folder: Path, repo_root: Path, output: str, *words: str) -> tuple[list[str], dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(repo_root), "OMP_NUM_THREADS": "1"}
    environment["FUSION_EVAL_CACHE"] = str(folder / "cache")
    line = [
        sys.executable, "-m", "fusion_eval", "method=simple_average", "modelpool=huggingface",
        "modelpool.base=base", "modelpool.experts={one: expert}", "modelpool.auto_class=AutoModelForCausalLM",
        "taskpool=language", "taskpool.tasks=[choice,whole,greedy,drawn]", "taskpool.include_path=tasks",
        "taskpool.log_samples=true", f"taskpool.answers={folder}/answers_{output}", "progress=false",
        "program.base=false", "program.experts=none", f"output={output}", *words,
    ]  # fmt: skip
    return line, {"cwd": folder, "env": environment}


def run(folder: Path, repo_root: Path, output: str, *words: str) -> dict[str, Any]:
    line, how = command(folder, repo_root, output, *words)
    done = subprocess.run(line, **how, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return measured(folder / output)


def measured(place: Path) -> dict[str, Any]:
    """Every value of the report, and every row of every sample file."""
    report = json.loads((place / "report.json").read_text())
    assert report["status"] == "complete"
    found = {name: model["tasks"] for name, model in report["models"].items()}
    files = sorted((place / "lm_eval").glob("*/samples_*.jsonl"))
    rows = {f"{f.parent.name}/{f.name.split('_')[1]}": f.read_text().splitlines() for f in files}
    assert len(rows) == len(TASKS)
    return {"tasks": found, "rows": rows}


@pytest.fixture(scope="module")
def single(folder: Path, repo_root: Path) -> dict[str, Any]:
    found = run(folder, repo_root, "single")
    assert len(found["rows"]["merged/choice"]) == 23
    return found


@pytest.mark.parametrize("devices", [2, 3])
def test_processes_change_nothing(folder: Path, repo_root: Path, single: dict[str, Any], devices: int) -> None:
    words = ("fabric=cpu", f"fabric.devices={devices}")
    assert run(folder, repo_root, f"ranks{devices}", *words) == single


def test_a_killed_run_goes_on_and_gives_the_same(folder: Path, repo_root: Path, single: dict[str, Any]) -> None:
    line, how = command(folder, repo_root, "killed")
    answers = folder / "answers_killed"
    line[1:3] = ["-c", DYING]
    process = subprocess.run(line, **how, capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    before = {file.name: _lines(file) for file in answers.glob("*.jsonl")}
    assert sum(map(len, before.values())) == 5
    assert run(folder, repo_root, "killed") == single
    for name, lines in before.items():
        assert _lines(answers / name)[: len(lines)] == lines


def _lines(file: Path) -> list[str]:
    """The whole lines of a file."""
    return file.read_text().split("\n")[:-1]
