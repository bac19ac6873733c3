from __future__ import annotations

from pathlib import Path

from fusion_eval.harness.try_imports import tried
from fusion_eval.harness.yaml_file import FunctionRef


def test_each_failure_is_told_and_none_takes_the_others_along(tmp_path: Path) -> None:
    files = {
        "good": "print('noise')\nfrom lmms_eval.utils import eval_logger\ndef f(): ...\n",
        "dies": "import os\nos._exit(3)\n",
        "fails": "x = 1\nraise ValueError('first line\\nsecond')\n",
        "needs": "import no_such_package\n",
        "lacks": "g = 1\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    refs = {name: FunctionRef(f"{name}.f", tmp_path / "a.yaml", 1) for name in files}
    found = {ref.target: str(faults[0]) for ref, faults in tried(list(refs.values()), [tmp_path]).items()}
    assert set(found) == {"dies.f", "fails.f", "needs.f", "lacks.f"}
    assert "ended the process with status 3" in found["dies.f"]
    assert "fails.py:2 fails when imported: ValueError: first line; expected" in found["fails.f"]
    assert "needs the package 'no_such_package'" in found["needs.f"]
    assert "has no 'f'" in found["lacks.f"]


def test_what_takes_too_long_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    ref = FunctionRef("slow.f", tmp_path / "a.yaml", 1)
    assert "takes more than 5 s" in str(tried([ref], [tmp_path], timeout=5.0)[ref][0])
