"""`python -m fusion_eval` is the console script."""

from __future__ import annotations

from fusion_eval.cli import main

if __name__ == "__main__":
    main()
