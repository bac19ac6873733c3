from __future__ import annotations

from pathlib import Path

from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.suite import make_suite

YAML = """
task: edited
dataset_path: rows.jsonl
process_docs: !function utils.prepared
doc_to_text: q
doc_to_target: q
"""
UTILS = """
def said(doc):
    return {"q": doc["q"] + " @"}


def prepared(docs):
    return docs.map(said)
"""


def test_an_edited_function_is_run_again(tmp_path: Path) -> None:
    """The cache of `datasets` knows a function of a module by its name alone."""
    (tmp_path / "rows.jsonl").write_text('{"q": "one"}\n')
    (tmp_path / "edited.yaml").write_text(YAML)
    for word in ("first", "second"):
        (tmp_path / "utils.py").write_text(UTILS.replace("@", word))
        suite = make_suite(["edited"], include_path=[tmp_path], data=DataSource(tmp_path, tmp_path / "cache"))
        assert suite.build()["edited"].requests[0].args[0] == f"one {word}"
