"""Where the error of a document is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness.build import document_error
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.function import ModuleSpace
from fusion_eval.harness.suite import make_suite
from fusion_eval.harness.yaml_file import FunctionRef


def test_the_line_is_the_hook_s_and_not_that_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(
        "import json\n\n\ndef hook(doc):\n    return helper(doc)\n\n\ndef helper(doc):\n    return json.loads(doc)\n"
    )
    hook = ModuleSpace([tmp_path]).function(FunctionRef("utils.hook", tmp_path / "task.yaml", 1))
    with pytest.raises(ValueError, match="Expecting") as error:
        hook("{")
    said = str(document_error("mine", 3, error.value))
    assert said.startswith("task 'mine', document 3: JSONDecodeError: Expecting")
    assert said.rstrip(".").endswith(f"{tmp_path}/utils.py:9")


@pytest.mark.parametrize(
    ("key", "code"),
    [("process_docs", "def hook(docs):\n    return docs.map(fix)\n"), ("custom_dataset", "def hook():\n    fix()\n")],
)
def test_a_hook_of_the_data_is_told_with_its_line(tmp_path: Path, key: str, code: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "one"}\n')
    keys = f"task: mine\ndataset_path: rows.jsonl\ndoc_to_text: q\ndoc_to_target: q\n{key}: !function utils.hook\n"
    (tmp_path / "mine.yaml").write_text(keys)
    (tmp_path / "utils.py").write_text(code)
    suite = make_suite(["mine"], include_path=[tmp_path], data=DataSource(tmp_path, tmp_path / "cache"))
    with pytest.raises(DataError, match=r"task 'mine': NameError: name 'fix' is not defined at .*utils\.py:2"):
        suite.build()
