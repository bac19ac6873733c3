"""Multimodal tasks with the real engine: one and two processes give the same report and the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.harness.engine.tiny_vlm import tiny_llava

pytestmark = pytest.mark.dist

COLORS = ("red", "green", "blue", "white", "black", "yellow", "purple")
WRITE = """
task: write
dataset_path: data.jsonl
test_split: test
doc_to_visual: picture
doc_to_text: question
doc_to_target: answer
generation_kwargs: {max_new_tokens: 4}
process_results: !function utils.results
metric_list:
  - metric: length
    aggregation: mean
  - metric: file
    aggregation: !function utils.submit
"""
PICK = """
task: pick
dataset_path: data.jsonl
test_split: test
output_type: multiple_choice
doc_to_visual: picture
doc_to_text: question
doc_to_choice: [red, green, blue, white]
doc_to_target: answer
"""
UTILS = """
import os

def results(doc, results):
    return {"length": len(results[0]) / 7, "file": results[0]}

def submit(results, args):
    folder = os.path.join(args.output_path, "submissions")
    os.makedirs(folder)
    with open(os.path.join(folder, "x.txt"), "w") as file:
        file.write(repr(results))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ranks")
    model, processor = tiny_llava()
    model.save_pretrained(place / "model")
    processor.save_pretrained(place / "model")
    tasks = place / "tasks"
    tasks.mkdir()
    rows = []
    for i, name in enumerate(COLORS):
        Image.new("RGB", (32, 32 + 8 * (i % 2)), name).save(tasks / f"{name}.png")
        rows.append({"picture": str(tasks / f"{name}.png"), "question": f"Color {i % 3}?", "answer": i % 4})
    (tasks / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("write.yaml", WRITE), ("pick.yaml", PICK), ("utils.py", UTILS)):
        (tasks / name).write_text(text)
    return place


def evaluated(folder: Path, repo_root: Path, devices: int) -> tuple[dict[str, Any], bytes]:
    """The values of the report, and the submission file."""
    output = folder / f"out{devices}"
    command = [
        sys.executable, "-m", "fusion_eval", "program=evaluate", "modelpool=huggingface", "modelpool.base=model",
        "modelpool.experts={}", "modelpool.auto_class=AutoModelForImageTextToText", "taskpool=multimodal/default",
        "taskpool.tasks=[write,pick]", "taskpool.include_path=tasks", "taskpool.data_root=tasks",
        "taskpool.answers=null", "taskpool.batch_size=2", "progress=false", f"output={output}", "fabric=cpu",
        f"fabric.devices={devices}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(repo_root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((output / "report.json").read_text())
    assert report["status"] == "complete"
    (file,) = output.rglob("x.txt")
    return {name: model["tasks"] for name, model in report["models"].items()}, file.read_bytes()


def test_any_number_of_processes(folder: Path, repo_root: Path) -> None:
    assert evaluated(folder, repo_root, 2) == evaluated(folder, repo_root, 1)
