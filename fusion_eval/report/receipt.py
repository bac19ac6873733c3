"""The circumstances of a run: versions, code, configuration, devices."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "torch",
    "torchmetrics",
    "lightning",
    "hydra-core",
    "numpy",
    "scipy",
    "safetensors",
    "transformers",
    "datasets",
)
_SECRET = re.compile(r"token$|password|secret|api_?key|credential", re.IGNORECASE)


def versions() -> dict[str, str]:
    """Versions of this package, Python and the installed packages that matter."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("fusion_eval", *_PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether there are uncommitted changes, or None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def redacted(config: Any, key: str = "") -> Any:
    """The configuration for JSON: without secrets (keys such as `token` or `api_key`), `inf` and `nan` as words."""
    if isinstance(config, Mapping):
        return {name: redacted(value, str(name)) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [redacted(value, key) for value in config]
    if isinstance(config, float) and not math.isfinite(config):
        return str(config)
    return "***" if isinstance(config, str) and _SECRET.search(key) else config


def receipt(config: Mapping[str, Any], overrides: Sequence[str], devices: Mapping[str, Any]) -> dict[str, Any]:
    """What is needed to run the same again."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "git": git_state(Path.cwd()),
        "overrides": [_without_secret(override) for override in overrides],
        "config": redacted(config),
        "seed": config.get("seed"),
        "devices": dict(devices),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _without_secret(override: str) -> str:
    key, equals, _ = override.partition("=")
    return f"{key}=***" if equals and _SECRET.search(key) else override


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
