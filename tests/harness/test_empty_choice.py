from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.score import score_task
from fusion_eval.harness.suite import make_suite

YAML = """
task: marks
dataset_path: rows.jsonl
doc_to_text: q
doc_to_target: "(A)"
filter_list:
  - name: letter
    filter:
      - {function: multi_choice_regex, regex_pattern: "(\\\\([A-Z]\\\\))", ignore_case: true, ignore_punctuation: true}
      - {function: take_first}
"""


def test_a_choice_that_is_all_punctuation_is_found_nowhere(tmp_path: Path, data: DataSource) -> None:
    """Without its punctuation it is empty, and an empty text stands in every response."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"q": "Which?", "choices": ["full stop", "..."]}) + "\n")
    (tmp_path / "marks.yaml").write_text(YAML)
    suite = make_suite(["marks"], include_path=[tmp_path], data=DataSource(tmp_path, data.cache_dir))
    found: list[Any] = []
    for text in ("a comma", "Full stop!", "Answer: B", "(B)"):
        built = suite.build()["marks"]
        built.requests[0].resps = [text]
        found.append(score_task(built, RunOptions(), 0).rows[0].filtered)
    assert found == [["[invalid]"], ["(A)"], ["(B)"], ["(B)"]]
