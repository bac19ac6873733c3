"""`python -m fusion_eval.report FOLDER...`: show a run's report again, or summarise a sweep's folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fusion_eval.errors import FusionEvalError


def main(folders: Sequence[str]) -> None:
    """Show what each folder holds."""
    from fusion_eval.report.report import read_report
    from fusion_eval.report.sweep import show_summary
    from fusion_eval.report.terminal import show

    if not folders:
        sys.exit("usage: python -m fusion_eval.report FOLDER...")
    for folder in map(Path, folders):
        if (folder / "report.json").exists():
            show(read_report(folder), folder)
        else:
            show_summary(folder)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FusionEvalError as error:
        sys.exit(f"fusion_eval: {error}")
