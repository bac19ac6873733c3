"""One open sandbox for the tests that only need some sandbox; helpers to run as another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusion_eval.sandbox import Sandbox
from fusion_eval.sandbox.level import bubblewrap_works, find_layers

CORPUS = Path(__file__).with_name("corpus.py")


@pytest.fixture(scope="session")
def can_run() -> None:
    if not find_layers().holds:
        pytest.skip("this machine offers no protection to run untrusted code under")


@pytest.fixture(scope="session")
def box(can_run: None) -> Iterator[Sandbox]:
    with Sandbox(allow_code_execution=True, workers=2) as opened:
        yield opened


@pytest.fixture(scope="session")
def plain_python() -> list[str]:
    """A command that starts Python as an unprivileged user; skips where there is none."""
    if os.geteuid() != 0:
        return [sys.executable]
    runuser = shutil.which("runuser")
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        command = [runuser or "", "-u", "nobody", "--", python]
        check = [*command, "-c", f"import sys; open({str(CORPUS)!r}); sys.exit(sys.version_info < (3, 11))"]
        if runuser and subprocess.run(check, capture_output=True).returncode == 0:
            return command
    pytest.skip("no Python 3.11 that another user can start, or a checkout that it cannot read")


def run_corpus(python: list[str], corpus: Path, *options: str) -> dict[str, object]:
    """What the corpus did, run by a command."""
    done = subprocess.run([*python, str(CORPUS), str(corpus), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="bubblewrap does not work here")
needs_landlock = pytest.mark.skipif(not find_layers(False).holds, reason="no Landlock and seccomp here")
