"""Public names of packages whose modules load when a name is asked for, so that the packages themselves are cheap."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def public_name(package: str, homes: Mapping[str, str], name: str) -> Any:
    """What a package's module-level `__getattr__` returns.

    Args:
        package: the package's name.
        homes: per public name the module that has it, relative to the package.
        name: the name asked for.

    Raises:
        AttributeError: it is not public.
    """
    if name not in homes:
        raise AttributeError(f"module '{package}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
