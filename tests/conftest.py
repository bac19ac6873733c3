"""Shared fixtures, and a world that is the same for every run: no network, one thread, the same examples.

Nothing of the user's own settings reaches the tests, and nothing of theirs the user's folders.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ("FUSION_EVAL_", "HYDRA_", "SLURM_", "PL_", "LT_")  # of this package, and of those that start processes
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR")
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
CACHES = ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_TOKEN")

for name in list(os.environ):
    if name.startswith(SETTINGS) or name in (*RANKS, "MASTER_PORT", *TERMINAL, *CACHES):
        del os.environ[name]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="fusion_eval_tests_")  # read when its libraries are imported
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

# The same examples each time, however slow the machine; `--hypothesis-profile=default` looks for others.
settings.register_profile(
    "same", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the package keeps from run to run, for this run only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSION_EVAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Material beside the checkout; tests that want it are skipped where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared folder")
    return folder


@pytest.fixture(scope="session")
def assets_dir() -> Path:
    """Small recorded files that the tests ship."""
    return ROOT / "tests" / "assets"
