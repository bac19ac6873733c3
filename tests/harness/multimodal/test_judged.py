"""Tasks that ask a judge in the middle of their hooks: scored, unscored and counted, never 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.harness.judge import get_judge
from fusion_eval.harness.multimodal.suite import make_multimodal_suite
from fusion_eval.harness.outcome import TaskOutcome
from fusion_eval.harness.suite import evaluate
from tests.harness.multimodal.scripted import ScriptedModel

YAML = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: docs.jsonl}}
test_split: test
doc_to_visual: !function utils.visual
doc_to_text: question
doc_to_target: answer
process_results: !function utils.{name}
metric_list:
  - metric: score
    aggregation: !function utils.{aggregation}
    higher_is_better: true
"""
UTILS = """
import openai

CLIENT = openai.OpenAI()


def visual(doc):
    return []


def mean(values):
    return sum(values) / len(values)


def client(doc, results):
    for attempt in range(3):
        try:
            messages = [{"role": "user", "content": doc["question"]}]
            reply = CLIENT.chat.completions.create(model="gpt", messages=messages)
            return {"score": float(reply.choices[0].message.content)}
        except Exception:
            pass
    return {"score": 0.0}


def late(doc, results):
    return {"score": doc["question"]}


def judged(questions):
    return mean([client({"question": question}, [])["score"] for question in questions])
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [{"question": f"q{i}", "answer": "a"} for i in range(3)]
    (folder / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "client.yaml").write_text(YAML.format(name="client", aggregation="mean"))
    (folder / "late.yaml").write_text(YAML.format(name="late", aggregation="judged"))
    (folder / "utils.py").write_text(UTILS)
    return folder


def outcomes(tasks: Path, judge: Any) -> dict[str, TaskOutcome]:
    suite = make_multimodal_suite(["client", "late"], include_path=[tasks], judge=get_judge(judge), cache=tasks / "c")
    return dict(evaluate(suite, ScriptedModel(lambda asked: "x")).tasks)


def test_a_judge_that_answers_gives_scores(tasks: Path) -> None:
    found = outcomes(tasks, {"answer": "0.5"})
    assert found["client"].values["score,none"].value == 0.5
    assert found["late"].values["score,none"].value == 0.5
    assert found["client"].unscored == {}


def test_without_a_judge_nothing_is_scored_and_nothing_is_0(tasks: Path) -> None:
    found = outcomes(tasks, None)
    assert set(found["client"].unscored) == {0, 1, 2}
    assert "none is set" in found["client"].unscored[0]
    assert found["client"].values == {}
    assert "none is set" in found["late"].failed["score,none"]


def test_a_document_whose_judge_fails_is_left_out(tasks: Path) -> None:
    def judge(messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        if messages[0]["content"] == "q1":
            raise TimeoutError("too slow")
        return "1"

    found = outcomes(tasks, judge)["client"]
    assert list(found.unscored) == [1]
    assert "TimeoutError: too slow" in found.unscored[1]
    value = found.values["score,none"]
    assert (value.value, value.n) == (1.0, 2)


def test_recorded_answers_are_enough(tasks: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "answers.jsonl")
    assert outcomes(tasks, {"answer": "0.25", "cache": cache})["client"].values["score,none"].value == 0.25
    replayed = outcomes(tasks, {"cache": cache, "mode": "replay"})
    assert replayed["client"].values["score,none"].value == 0.25
    assert replayed["late"].values["score,none"].value == 0.25
