"""Record a small extract of the peer's oracle run: logits of two methods x two seeds on 719 digits, and their metrics.

python tests/assets/task/record.py FOLDER_WITH_mushin_run.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

SEEDS = 2
HERE = Path(__file__).resolve().parent


def main(folder: Path) -> None:
    """Write digits.npz and digits.json beside this file."""
    run = json.loads((folder / "mushin_run.json").read_text())
    with np.load(folder / "mushin_run_logits.npz") as arrays:
        logits = {name: arrays[name][:SEEDS] for name in ("linear", "mlp")}
        np.savez_compressed(HERE / "digits.npz", y=arrays["y"].astype(np.uint8), **logits)
    data = run["digits"]["by_test"]["wilcoxon"]["data"]
    values = {
        method: {metric: table[row][:SEEDS] for metric, table in data.items()}
        for row, method in enumerate(("linear", "mlp"))
    }
    defects = {k: v for k, v in run["known_defects"].items() if k.startswith(("retrieval", "auroc", "perfect"))}
    document = {"versions": run["versions"], "values": values, "known_defects": defects}
    (HERE / "digits.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
