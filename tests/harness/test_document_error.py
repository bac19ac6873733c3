"""Where the error of a document is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.harness.build import document_error
from fusion_eval.harness.function import ModuleSpace
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
