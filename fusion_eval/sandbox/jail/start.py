"""Started by path inside the jail: makes this folder importable under its own name and nothing else of the package."""

from __future__ import annotations

import os
import sys
import types


def main() -> None:
    """Runs the server on the descriptor named by the first argument."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in ("fusion_eval", "fusion_eval.sandbox"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    sys.modules["fusion_eval.sandbox"].__path__ = [folder]
    sys.path[:] = [*sys.path[1:], *sys.argv[3:]]
    from importlib import import_module

    import_module(f"fusion_eval.sandbox.jail.{sys.argv[1]}").main(int(sys.argv[2]))


if __name__ == "__main__":
    main()
