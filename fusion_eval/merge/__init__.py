"""The merge engine: lazy checkpoints and their views, rules over one parameter, and the loop that writes a merge.

`fusion_eval.merge` is this package and, called, the function of the Python interface: see `fusion_eval.program.api`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that stands for the function of the same name once a submodule of it has been imported."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from fusion_eval.program.api import merge

        return merge(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
