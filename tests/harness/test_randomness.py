from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.randomness import NUMPY_SEED, PYTHON_SEED, OwnRandomness
from fusion_eval.harness.suite import make_suite

YAML = """
task: shuffled
dataset_path: rows.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "Which?"
doc_to_target: 0
doc_to_choice: choices
process_docs: !function utils.shuffled
"""
UTILS = """
import random

def shuffled(docs):
    def one(doc):
        random.shuffle(doc["choices"])
        return doc
    return docs.map(one)
"""
CHOICES = [f"choice {i}" for i in range(6)]


def test_lent_generators_go_on_where_they_were() -> None:
    own, expected = OwnRandomness(), random.Random(PYTHON_SEED)
    random.seed(99)
    np.random.seed(98)
    before = random.getstate()
    with own.lent(), own.lent():
        assert [random.random(), random.random()] == [expected.random(), expected.random()]
        assert np.random.random() == np.random.RandomState(NUMPY_SEED).random_sample()
    assert random.getstate() == before
    assert np.random.random() == np.random.RandomState(98).random_sample()
    with own.lent():
        assert random.random() == expected.random()


def test_a_task_shuffles_alike_whatever_was_drawn_before(tmp_path: Path, data: DataSource) -> None:
    """The peer seeds Python's generator with 0 before it loads tasks."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"choices": CHOICES}) + "\n" for _ in range(3)))
    (tmp_path / "shuffled.yaml").write_text(YAML)
    (tmp_path / "utils.py").write_text(UTILS)
    reference, wanted = random.Random(0), []
    for _ in range(3):
        row = list(CHOICES)
        reference.shuffle(row)
        wanted += [f" {choice}" for choice in row]
    for seed in (5, 6):
        random.seed(seed)
        built = make_suite(["shuffled"], include_path=[tmp_path], data=data).build()["shuffled"]
        assert [request.args[1] for request in built.requests] == wanted


def test_with_compat_tasks_go_on_where_the_one_before_ended(tmp_path: Path, data: DataSource) -> None:
    """So the peer's tasks do, which are loaded in the order in which they were asked for."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"choices": CHOICES}) + "\n")
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(YAML.replace("task: shuffled", f"task: {name}"))
    (tmp_path / "utils.py").write_text(UTILS)
    reference = random.Random(0)
    suite = make_suite(["first", "second"], include_path=[tmp_path], data=data, options=RunOptions(compat=True))
    for built in suite.build().values():
        row = list(CHOICES)
        reference.shuffle(row)
        assert [request.args[1] for request in built.requests] == [f" {choice}" for choice in row]
