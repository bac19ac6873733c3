"""The task files of the contract, in a user's own folder, run as they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.engine.transformers_model import TransformersModel
from fusion_eval.harness.outcome import Outcome
from fusion_eval.harness.suite import evaluate, make_suite

FILES = {
    "simple_qa.yaml": r"""
task: simple_qa
dataset_path: data/simple_qa.jsonl
output_type: generate_until
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
""",
    "my_custom_task.yaml": r"""
task: my_custom_task
task_alias: "My Task"
tag:
  - custom
  - domain_specific
dataset_path: data/my_data.jsonl
dataset_name: default
training_split: train
validation_split: validation
test_split: test
output_type: generate_until
num_fewshot: 4
batch_size: auto
doc_to_text: "Question: {{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {max_gen_toks: 8, until: ["\n", "."], temperature: 0.0}
filter_list:
  - name: extract_answer
    filter:
      - function: regex
        regex_pattern: "Answer: (.*)"
        group: 1
      - function: lowercase
      - function: strip_whitespace
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
  - metric: f1
    aggregation: mean
    higher_is_better: true
  - metric: bleu
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
""",
    "choice.yaml": r"""
task: choice
dataset_path: data/choice.jsonl
output_type: multiple_choice
doc_to_text: |
  {% if context %}
  Context: {{context}}
  {% endif %}
  Question: {{question}}
  A. {{choices[0]}}
  B. {{choices[1]}}
  Answer:
doc_to_target: "{{ 'AB'[answer_idx] }}"
doc_to_choice: ["A", "B"]
""",
    "custom.yaml": """
task: my_task
dataset_path: data/simple_qa.jsonl
process_docs: !function utils.process_docs
doc_to_text: !function utils.doc_to_text
doc_to_target: !function utils.doc_to_target
generation_kwargs: {max_gen_toks: 4, until: []}
metric_list:
  - metric: exact_match
    aggregation: !function utils.aggregate_scores
    higher_is_better: true
""",
    "medical_qa.yaml": r"""
task: medical_qa
dataset_path: data/medical_qa.jsonl
output_type: generate_until
num_fewshot: 3
doc_to_text: |
  Medical Question: {{question}}
  Context: {{context}}
  Answer (be concise):
doc_to_target: "{{answer}}"
generation_kwargs:
  max_gen_toks: 8
  until:
    - "\n\n"
  temperature: 0.0
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
  - metric: !function utils.medical_f1
    aggregation: mean
    higher_is_better: true
filter_list:
  - name: lowercase
    filter:
      - function: lowercase
      - function: remove_whitespace
metadata:
  version: 1.0
  domain: medical
""",
    "classification.yaml": """
task: classification
dataset_path: data/labels.csv
output_type: loglikelihood
doc_to_text: "Text: {{text}}\\nLabel:"
doc_to_target: " {{label}}"
metric_list:
  - metric: acc
    aggregation: mean
""",
    "perplexity.yaml": """
task: perplexity
dataset_path: data/labels.csv
output_type: loglikelihood_rolling
doc_to_text: "{{text}}"
metric_list:
  - metric: perplexity
    aggregation: perplexity
""",
    "ranking.yaml": """
task: ranking
dataset_path: data/labels.csv
output_type: loglikelihood
doc_to_text: "Query: {{text}}\\nRelevant:"
doc_to_target: [" Yes", " No"]
metric_list:
  - metric: acc
    aggregation: mean
""",
    "_default.yaml": """
group: my_eval_suite
task:
  - simple_qa
  - choice
  - classification
""",
    "utils.py": """
import re


def process_docs(dataset):
    def _process(doc):
        doc["question"] = doc["question"].strip().lower()
        return doc

    return dataset.map(_process)


def doc_to_text(doc):
    context = doc.get("context", "")
    question = doc["question"]
    return f"Context: {context}\\nQuestion: {question}\\nAnswer:" if context else f"Question: {question}\\nAnswer:"


def doc_to_target(doc):
    return doc["answer"].strip().lower()


def aggregate_scores(items):
    correct = sum(1 for item in items if item == 1.0)
    return correct / len(items) if items else 0.0


def medical_f1(predictions, references):
    found = set(re.findall(r"\\b[A-Z][a-z]+\\b", predictions[0]))
    wanted = set(re.findall(r"\\b[A-Z][a-z]+\\b", references[0]))
    return 1.0 if found == wanted else 0.0


def broken(doc, results):
    return {"acc": results[1]}
""",
}
DATA = {
    "simple_qa.jsonl": [
        {"question": " What is 2+2?", "answer": "4"},
        {"question": "Capital of France?", "answer": "Paris"},
    ],
    "my_data.jsonl": [{"question": f"q{i}", "answer": f"a{i}"} for i in range(5)],
    "choice.jsonl": [
        {"context": "c" * (i % 2), "question": "q", "choices": ["x", "y"], "answer_idx": i % 2} for i in range(4)
    ],
    "medical_qa.jsonl": [{"question": f"q{i}", "context": "c", "answer": f"Word{i}"} for i in range(5)],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tasks, data = tmp_path / "my_tasks", tmp_path / "data"
    tasks.mkdir()
    data.mkdir()
    for name, text in FILES.items():
        (tasks / name).write_text(text)
    for name, rows in DATA.items():
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "labels.csv").write_text('text,label\n"a fine day",good\n"a long, dull day",bad\n')
    monkeypatch.chdir(tmp_path)
    return tasks


def run(asked: Any, folder: Path, model: Any, tokenizer: Any, data: DataSource, **options: Any) -> Outcome:
    suite = make_suite(
        asked, include_path=[folder], data=DataSource(cache_dir=data.cache_dir), options=RunOptions(**options)
    )
    return evaluate(
        suite, TransformersModel(model, tokenizer, max_length=400 if model.config.model_type == "llama" else 128)
    )


def test_every_sample_runs(folder: Path, tiny_llama: Any, tokenizers: dict[str, Any], data: DataSource) -> None:
    names = ["my_eval_suite", "custom", "my_task", "medical_qa", "perplexity", "ranking"]
    outcome = run(names, folder, tiny_llama, tokenizers["llama"], data, gen_kwargs={"max_gen_toks": 6})
    assert {name: sorted(task.values) for name, task in outcome.tasks.items()} == {
        "simple_qa": ["exact_match,none"],
        "choice": ["acc,none", "acc_norm,none"],
        "classification": ["acc,none"],
        "my_custom_task": ["bleu,extract_answer", "exact_match,extract_answer", "f1,extract_answer"],
        "my_task": ["exact_match,none"],
        "medical_qa": ["exact_match,lowercase", "medical_f1,lowercase"],
        "perplexity": ["perplexity,none"],
        "ranking": ["acc,none"],
    }
    assert not [task.failed for task in outcome.tasks.values() if task.failed]
    assert outcome.tasks["my_custom_task"].unmatched == {"extract_answer": 5}
    assert outcome.tasks["perplexity"].values["perplexity,none"].value > 1
    assert list(outcome.groups) == ["my_eval_suite"]
    assert outcome.tasks["my_task"].rows[0].arguments[0][0] == "Question: what is 2+2?\nAnswer:"
    shown = [row.arguments[0][0] for row in outcome.tasks["my_custom_task"].rows]
    assert all(text.count(f"q{i}") == 1 for i, text in enumerate(shown))  # four shots, never the document itself


def test_a_document_is_never_its_own_shot(
    folder: Path, tiny_llama: Any, tokenizers: dict[str, Any], data: DataSource
) -> None:
    outcome = run(["medical_qa"], folder, tiny_llama, tokenizers["llama"], data, gen_kwargs={"max_gen_toks": 2})
    for row in outcome.tasks["medical_qa"].rows:
        assert row.arguments[0][0].count(f"Question: {row.doc['question']}\n") == 1
        assert row.arguments[0][0].count("Medical Question:") == 4


def test_a_hook_that_raises_is_named_with_its_line(
    folder: Path, tiny_llama: Any, tokenizers: dict[str, Any], data: DataSource
) -> None:
    (folder / "bad.yaml").write_text(FILES["simple_qa.yaml"].replace("simple_qa\n", "bad\n", 1)
                                     + "process_results: !function utils.broken\n")  # fmt: skip
    with pytest.raises(DataError, match=r"task 'bad', document 0: IndexError.* at .*utils\.py:\d+"):
        run(["bad"], folder, tiny_llama, tokenizers["llama"], data, gen_kwargs={"max_gen_toks": 2})


def test_samples_and_limits(folder: Path, tiny_llama: Any, tokenizers: dict[str, Any], data: DataSource) -> None:
    few = run(["my_custom_task"], folder, tiny_llama, tokenizers["llama"], data, samples={"my_custom_task": [4, 1]})
    assert [row.doc_id for row in few.tasks["my_custom_task"].rows] == [1, 4]
    assert [row.doc["question"] for row in few.tasks["my_custom_task"].rows] == ["q1", "q4"]
    share = run(["my_custom_task"], folder, tiny_llama, tokenizers["llama"], data, limit=0.5)
    assert share.tasks["my_custom_task"].scored == 3
    with pytest.raises(DataError, match="indices \\[9\\]; expected 0 to 4"):
        run(["my_custom_task"], folder, tiny_llama, tokenizers["llama"], data, samples={"my_custom_task": [9]})


def test_a_missing_file_is_told_with_the_places(
    folder: Path, tiny_llama: Any, tokenizers: dict[str, Any], data: DataSource
) -> None:
    (folder / "gone.yaml").write_text(FILES["simple_qa.yaml"].replace("simple_qa", "gone"))
    with pytest.raises(DataError, match=r"gone: dataset_path: the file data/gone\.jsonl does not exist"):
        run(["gone"], folder, tiny_llama, tokenizers["llama"], data)
