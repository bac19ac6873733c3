"""The recorded run of the peer: per-item scores of two classifiers with five seeds, and what was computed from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def oracle(assets_dir: Path) -> dict[str, Any]:
    """The recorded values."""
    return json.loads((assets_dir / "stats" / "oracle.json").read_text())


@pytest.fixture(scope="session")
def digits(assets_dir: Path) -> dict[str, Any]:
    """Targets, predicted labels (seeds, items) and the first seed's logits."""
    with np.load(assets_dir / "stats" / "oracle.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="session")
def right(digits: dict[str, Any]) -> dict[str, np.ndarray]:
    """0/1 scores (seeds, items) of both methods."""
    return {name: (digits[f"{name}_labels"] == digits["target"]).astype(np.float64) for name in ("linear", "mlp")}


@pytest.fixture(scope="session")
def difference(right: dict[str, np.ndarray]) -> np.ndarray:
    """Item differences, seeds averaged."""
    return right["linear"].mean(axis=0) - right["mlp"].mean(axis=0)
