"""Where the package keeps from run to run what costs time to make again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fusion_eval.errors import Fault, OutputError

VARIABLE: Final = "FUSION_EVAL_CACHE"


def cache_folder() -> Path:
    """`$FUSION_EVAL_CACHE`, else `fusion_eval` in the user's cache folder.

    Raises:
        OutputError: neither is set, and the user has no home folder.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    if parent := os.environ.get("XDG_CACHE_HOME"):
        return Path(parent) / "fusion_eval"
    try:
        return Path.home() / ".cache" / "fusion_eval"
    except RuntimeError as error:
        found, expected = "not set, and this user has no home folder", "a folder that can be written"
        raise OutputError(Fault(VARIABLE, found, expected, f"Set {VARIABLE} to one.")) from error
