"""The package and its Python may lie anywhere, also in /tmp, which every jail has to itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fusion_eval.sandbox.bubblewrap import command, inside
from fusion_eval.sandbox.interpreter import current

PROGRAM = """
from fusion_eval.sandbox import Program, Sandbox
with Sandbox(allow_code_execution=True) as box:
    (verdict,) = box.run([Program("def f(x):\\n    return x + 1\\n", test="assert f(1) == 2\\n", entry_points=("f",))])
print(verdict.status.value, verdict.detail)
"""


def test_what_lies_in_tmp_is_bound_elsewhere() -> None:
    assert inside("/usr/lib") == "/usr/lib"
    assert inside("/tmp/a/lib") == "/jail/tmp/a/lib"
    words = command(["true"], {}, ["/tmp/a/lib"], 1 << 20)
    assert words[words.index("/tmp/a/lib") + 1] == "/jail/tmp/a/lib"
    moved = current().seen_by(lambda path: f"/x{path}")
    assert moved.jail == f"/x{current().jail}"
    assert all(folder.startswith("/x/") for folder in moved.packages)


def test_a_package_in_tmp_runs_programs(repo_root: Path) -> None:
    if not tempfile.gettempdir().startswith("/tmp"):
        pytest.skip("temporary files lie elsewhere")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(
            repo_root / "fusion_eval", Path(folder) / "fusion_eval", ignore=shutil.ignore_patterns("__pycache__")
        )
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout.strip() == "passed", done.stdout + done.stderr
