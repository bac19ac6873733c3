"""Public names of lazy packages are the things themselves, whether or not the modules that have them are loaded."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from fusion_eval.lazy import public_name

PACKAGES = (
    "harness", "harness.code", "harness.filter", "harness.multimodal", "modelpool", "program", "program.compare",
    "program.inspect", "program.study", "stats", "task", "taskpool",
)  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_a_public_name_is_no_module(name: str) -> None:
    """A module that is loaded becomes an attribute of its package, and would hide a public name of the same name."""
    package = importlib.import_module(f"fusion_eval.{name}")
    for public in package.__all__:
        getattr(package, public)
        assert not isinstance(getattr(package, public), ModuleType), public


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"module 'fusion_eval' has no attribute 'nothing'"):
        public_name("fusion_eval", {"something": "log"}, "nothing")
