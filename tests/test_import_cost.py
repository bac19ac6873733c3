"""What is only asked loads no torch: help, the composed configuration, tab completion, the package itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fusion_eval

HEAVY = ("torch", "lightning", "torchmetrics", "numpy", "scipy", "transformers", "rich")
ASK = "import atexit, sys; atexit.register(lambda: print('LOADED', sorted(m for m in {heavy} if m in sys.modules)))"


def loaded(code: str, folder: Path, **variables: str) -> tuple[list[str], str]:
    """The heavy packages that a process has loaded when it ends, and what it printed."""
    code = f"{ASK.format(heavy=HEAVY)}\n{code}"
    env = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out, _, names = done.stdout.rpartition("LOADED ")
    return list(ast.literal_eval(names)), out


def cli(*argv: str) -> str:
    return f"sys.argv = ['fusion_eval', *{list(argv)}]\nfrom fusion_eval.cli import main\nmain()"


@pytest.mark.parametrize(
    ("argv", "variables", "word"),
    [
        (["--help"], {}, "proves that the merge is better"),
        (["--cfg", "job"], {}, "taskpool:"),
        (["-sc", "query=bash"], {"COMP_LINE": "fusion_eval method=ta", "COMP_POINT": "21"}, "method=task_arithmetic"),
        (["-sc", "install=bash"], {}, "complete"),
        (["--info", "searchpath"], {}, "main"),
    ],
)
def test_asking_loads_no_torch(argv: list[str], variables: dict[str, str], word: str, tmp_path: Path) -> None:
    names, out = loaded(cli(*argv), tmp_path, **variables)
    assert names == []
    assert word in out


@pytest.mark.parametrize(
    "statement",
    [
        "import fusion_eval",
        "from fusion_eval import get_rankzero_logger, auto_register_config, LightningFabricMixin, instantiate",
        "import fusion_eval.errors, fusion_eval.report.values",
    ],
)
def test_importing_loads_no_torch(statement: str, tmp_path: Path) -> None:
    assert loaded(statement, tmp_path) == ([], "")


def test_every_public_name_can_be_had() -> None:
    assert fusion_eval.__all__ == sorted(fusion_eval.__all__)
    assert set(fusion_eval.__all__) == set(fusion_eval._HOME)
    assert set(fusion_eval.__all__) <= set(dir(fusion_eval))
    for name in fusion_eval.__all__:
        assert callable(getattr(fusion_eval, name)), name


def test_annotations_and_homes_agree() -> None:
    tree = ast.parse(Path(fusion_eval.__file__).read_text(encoding="utf-8"))
    typed = {a.name: n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    typed.pop("__version__")
    typed.pop("annotations")
    typed.pop("TYPE_CHECKING")
    typed.pop("Any")
    assert typed == fusion_eval._HOME


def test_the_version_is_told_once(repo_root: Path) -> None:
    project = tomllib.loads((repo_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == fusion_eval.__version__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'mrge'"):
        fusion_eval.mrge  # noqa: B018
