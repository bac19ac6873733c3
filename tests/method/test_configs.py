"""Every config of a method builds, says its paper, and merges."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fusion_eval.method.base_method import Method

FOLDER = Path(__file__).resolve().parents[2] / "config" / "method"
NETWORKS = {"smile_upscaling", "ensemble"}  # whose result is a network: they need a pool that loads modules
FILES = sorted(path for path in FOLDER.glob("*.yaml") if "???" not in path.read_text() and path.stem not in NETWORKS)
TENSORS = {"include": None, "exclude": None, "tables": None, "others": "base", "statistics": "average"}


def instantiate(node):
    """What Hydra would build, without Hydra."""
    if OmegaConf.is_list(node):
        return [instantiate(value) for value in node]
    if not OmegaConf.is_dict(node):
        return node
    arguments = {key: instantiate(node[key]) for key in node if key != "_target_"}
    if "_target_" not in node:
        return arguments
    module, name = node["_target_"].rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(**arguments)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config(path, make_pool):
    config = OmegaConf.load(path)
    method = instantiate(config)
    assert isinstance(method, Method)
    accepted = inspect.signature(type(method).__init__).parameters
    missing = set(accepted) - set(config) - {"self", "last", "origin"}
    assert not missing, f"options without a line in the config: {missing}"
    pool = next(p for p in (make_pool(3), make_pool(2), make_pool(1)) if not method.faults(p))
    merged = method.apply(pool)
    for model in merged.values() if hasattr(merged, "shared") else [merged]:
        assert all(torch.isfinite(model[name]).all() for name in model)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_names_its_paper(path):
    head = path.read_text().splitlines()[0]
    assert head.startswith("# ")
    assert re.search(r"arXiv:\d{4}\.\d{5}|no arXiv id", head), head
