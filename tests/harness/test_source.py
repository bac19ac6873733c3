from __future__ import annotations

from pathlib import Path

import pytest

from fusion_eval.harness.source import SourceReader, read_source
from fusion_eval.harness.yaml_file import FunctionRef

SUPPLIED = {"peer": {"peer": dict, "peer.api": lambda: {"known": 1}, "peer.tasks._shared.files": lambda: {"save": 1}}}


def faults(root: Path, target: str, **files: str) -> list[str]:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    reader = SourceReader([root], SUPPLIED, ["stand_in"])
    return [str(fault) for fault in reader.faults(FunctionRef(target, root / "a.yaml", 3))]


@pytest.mark.parametrize(
    "text",
    [
        "def f(): ...\n",
        "class f: ...\n",
        "f = g = 1\n",
        "f: int = 1\n",
        "(a, f), b = (1, 2), 3\n",
        "from os import path as f\n",
        "import os.path as f\n",
        "if True:\n    f = 1\n",
        "try:\n    f = 1\nexcept ValueError:\n    pass\n",
        "with open('x') as f: ...\n",
        "for f in (): ...\n",
        "from os.path import *\n",
        "globals()['f'] = 1\n",
        "def fill():\n    globals()['f'] = 1\nfill()\n",
        "def __getattr__(name): ...\n",
        "try:\n    import no_such_package as f\nexcept ImportError:\n    f = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import no_such_package\nf = 1\n",
        "def f():\n    import no_such_package\n",
        "import stand_in\nfrom peer import api\nfrom peer.api import known as f\n",
        "from peer.tasks._shared.files import save as f\n",
        "f = '\\s'\n",
    ],
)
def test_names_are_found_without_running_the_file(text: str, tmp_path: Path) -> None:
    assert faults(tmp_path, "utils.f", utils=text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def ff(): ...\n", "has no 'f'"),
        ("def f(:\n", "utils.py:1: is not valid Python"),
        (
            "import no_such.part\nf = 1\n",
            "needs the package 'no_such', which is not installed. Run: pip install no_such",
        ),
        ("import cv2_missing, no_such\nf = 1\n", "needs the package 'cv2_missing'"),
        ("from peer.api import unknown\nf = 1\n", "imports unknown from peer.api, which is not supplied"),
        ("from peer.elsewhere import x\nf = 1\n", "imports peer.elsewhere, which is neither there nor supplied"),
        ("from .absent import x\nf = 1\n", "imports .absent, which does not exist"),
        ("from peer.tasks.other.more import y as f\n", "has no 'y'. Did you mean 'yy'"),
        ("from peer.tasks.other.bad import x as f\n", "needs the package 'no_such'"),
    ],
)
def test_what_is_lacking_is_named(text: str, said: str, tmp_path: Path) -> None:
    found = faults(tmp_path, "utils.f", utils=text, other__more="yy = 1\n", other__bad="import no_such\nx = 1\n")
    assert said in found[0]


def test_files_that_import_each_other_end(tmp_path: Path) -> None:
    assert faults(tmp_path, "a.f", a="from .b import g as f\n", b="from .a import f as g\nimport no_such\n") != []


def test_modules_that_are_not_there(tmp_path: Path) -> None:
    assert "names a module that does not exist" in faults(tmp_path, "absent.f")[0]
    assert "names no module" in faults(tmp_path, "f")[0]
    assert faults(tmp_path, "json.loads") == []


def test_a_path_that_a_file_adds_is_looked_into(tmp_path: Path) -> None:
    text = "import sys\nsys.path.append('..')\nimport shared_one\nf = 1\n"
    assert faults(tmp_path, "deep.utils.f", deep__utils=text, shared_one="x = 1\n") == []


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"x = '\xff'\n")
    fault = read_source(tmp_path / "a.py").fault
    assert fault is not None
