"""Data of the tests, one open sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fusion_eval.harness.code import data_root
from fusion_eval.sandbox import Sandbox
from fusion_eval.sandbox.level import find_layers


@pytest.fixture
def code_data(assets_dir: Path) -> Iterator[Path]:
    """A few problems of each data set, as the data folder in force."""
    with data_root(assets_dir / "code"):
        yield assets_dir / "code"


@pytest.fixture
def full_data(shared_dir: Path) -> Iterator[Path]:
    """The whole data sets, where they are."""
    with data_root(shared_dir / "data"):
        yield shared_dir / "data"


@pytest.fixture(scope="session")
def box() -> Iterator[Sandbox]:
    if not find_layers().holds:
        pytest.skip("this machine offers no protection to run untrusted code under")
    with Sandbox(allow_code_execution=True, workers=2) as opened:
        yield opened
