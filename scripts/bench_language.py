"""Language tasks against lm_eval in one run: same model and documents, CPU seconds of building, answering, scoring.

    scripts/bench language [--docs 24] [--width 512] [--batches 8,32]

The peer has to be importable (`pip install lm_eval`); without it only our own figures are printed. Each side runs in
a process of its own on one thread; the peer's best batch size counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORDS = "the a red old ship moves under bright water Paris table runs seven green before house small".split()  # noqa: SIM905
BASE = "dataset_path: json\ntest_split: test\nfewshot_split: train\n"
CHOICES = BASE + "output_type: multiple_choice\ndoc_to_target: gold\n"
WRITING = (
    BASE + "doc_to_text: '{{q}}?'\ndoc_to_target: '{{choices[0]}}'\ngeneration_kwargs: {until: [e], max_gen_toks: 24}\n"
)
FIRST = "fewshot_config: {sampler: first_n}\n"
LETTERS = (
    "doc_to_text: '{{q}} A. {{choices[0]}} B. {{choices[1]}} C. {{choices[2]}} Answer:'\ndoc_to_choice: [A, B, C]\n"
)
TEXTS = "doc_to_text: ''\ndoc_to_target: passage\nmetric_list: [{metric: bits_per_byte}]\n"
CASES = {
    "choices, long passage": ("long", CHOICES + "doc_to_text: '{{passage}} {{q}}?'\ndoc_to_choice: choices\n"),
    "letters, five shots": ("short", CHOICES + FIRST + "num_fewshot: 5\n" + LETTERS),
    "choices, short": ("short", CHOICES + "doc_to_text: '{{q}}?'\ndoc_to_choice: choices\n"),
    "whole texts": ("long", BASE + "output_type: loglikelihood_rolling\n" + TEXTS),
    "whole texts of one length": ("even", BASE + "output_type: loglikelihood_rolling\n" + TEXTS),
    "writing, fixed shots": ("short", WRITING + FIRST + "num_fewshot: 8\n"),
    "writing, random shots": ("short", WRITING + "num_fewshot: 4\n"),
}


def words(r: random.Random, count: int) -> str:
    return " ".join(r.choice(WORDS) for _ in range(count))


def _document(r: random.Random, number: int, lengths: tuple[int, int]) -> dict[str, Any]:
    length = r.randint(*lengths)
    choices = [words(r, 6) for _ in range(3)]
    return {"passage": words(r, length), "q": words(r, 24), "choices": choices, "gold": number % 3}


def prepare(folder: Path, docs: int, width: int) -> None:
    """Documents, task files and a random model with a word tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    r = random.Random(0)
    for kind, lengths in (("long", (60, 460)), ("even", (300, 300)), ("short", (0, 0))):
        for split, count in (("train", 12), ("test", docs)):
            rows = [_document(r, i, lengths) for i in range(count)]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{kind}_{split}.jsonl").write_text(text)
    (folder / "tasks").mkdir()
    for number, (kind, text) in enumerate(CASES.values()):
        files = {split: str(folder / f"{kind}_{split}.jsonl") for split in ("train", "test")}
        (folder / "tasks" / f"case{number}.yaml").write_text(
            f"task: case{number}\ndataset_kwargs: {{data_files: {json.dumps(files)}}}\n{text}"
        )
    pieces = [*WORDS, *"ABC", "Answer", "Question", ".", ":", "?", "<s>", "</s>", "<unk>"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(dict.fromkeys(pieces))}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tok = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    config = LlamaConfig(
        vocab_size=8000, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2048,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tok.save_pretrained(folder / "model")


def ours(folder: Path, case: int) -> dict[str, Any]:
    from fusion_eval.harness.dataset import DataSource
    from fusion_eval.harness.engine.transformers_model import load_model
    from fusion_eval.harness.suite import evaluate, make_suite

    model = load_model(str(folder / "model"))
    source = DataSource(cache_dir=folder / "cache")
    import datasets  # noqa: F401 - its import is not timed on either side

    start = time.process_time()
    suite = make_suite([f"case{case}"], include_path=[folder / "tasks"], data=source, cache=folder / "index")
    outcome = evaluate(suite, model, iterations=0)
    return {"seconds": time.process_time() - start, "tokens": outcome.work["tokens_forwarded"]}


def peer(folder: Path, case: int, batch: int) -> dict[str, Any]:
    from lm_eval import evaluator  # type: ignore[import-not-found, unused-ignore]
    from lm_eval.models.huggingface import HFLM  # type: ignore[import-not-found, unused-ignore]
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found, unused-ignore]

    tasks = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    model = HFLM(pretrained=str(folder / "model"), device="cpu", batch_size=batch)
    start = time.process_time()
    evaluator.simple_evaluate(model=model, tasks=[f"case{case}"], task_manager=tasks, bootstrap_iters=0)
    return {"seconds": time.process_time() - start}


def child(side: str, folder: Path, case: int, batch: int = 0) -> dict[str, Any]:
    import resource

    import torch

    torch.set_num_threads(1)
    found = ours(folder, case) if side == "ours" else peer(folder, case, batch)
    return {**found, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def run(side: str, folder: Path, case: int, batch: int = 0) -> dict[str, Any]:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "--child", side, str(folder), str(case), str(batch)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": str(folder / "hf"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", type=int, default=24)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batches", default="8,32")
    options = parser.parse_args()
    with_peer = importlib.util.find_spec("lm_eval") is not None
    print(f"{'case':26} {'ours s':>8} {'tokens':>8} {'MB':>6} {'peer s':>8} {'MB':>6} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, options.docs, options.width)
        for case, name in enumerate(CASES):
            mine = run("ours", folder, case)
            line = f"{name:26} {mine['seconds']:8.2f} {mine['tokens']:8.0f} {mine['megabytes']:6.0f}"
            if with_peer:
                found = [run("peer", folder, case, int(batch)) for batch in options.batches.split(",")]
                best = min(found, key=lambda row: row["seconds"])
                line += f" {best['seconds']:8.2f} {best['megabytes']:6.0f} {best['seconds'] / mine['seconds']:5.1f}x"
            print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        _, _, kind, place, number, size = sys.argv
        print(json.dumps(child(kind, Path(place), int(number), int(size))))
    else:
        main()
