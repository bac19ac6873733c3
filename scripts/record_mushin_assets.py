"""Extract the small oracle files in tests/assets/stats from a recorded run of mushin-py's evaluation layer.

    python scripts/record_mushin_assets.py --run mushin_run.json --logits mushin_run_logits.npz

The run is the output of `mushin_run.py` (mushin-py 0.16.0): two classifiers with five seeds each on 719 digits,
compared with every test and every correction, and the same scores through scipy and statsmodels.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

ASSETS = Path(__file__).resolve().parent.parent / "tests" / "assets" / "stats"


def extract(run: dict[str, Any]) -> dict[str, Any]:
    """The parts of the run that the statistics must reproduce."""
    digits = run["digits"]
    three = digits["three_methods_by_correction"]
    return {
        "versions": run["versions"],
        "two_methods": {
            "methods": digits["by_test"]["welch"]["coords"]["method"],
            "data": digits["by_test"]["welch"]["data"],
            "summary": digits["by_test"]["welch"]["summary"],
            "comparisons": {test: found["comparisons"] for test, found in digits["by_test"].items()},
            "alpha_0.01": digits["alpha_0.01"]["comparisons"],
        },
        "three_methods": {
            "methods": three["holm"]["coords"]["method"],
            "data": three["holm"]["data"],
            "comparisons": {correction: found["comparisons"] for correction, found in three.items()},
        },
        "compare_scores": {
            case: {part: found[part] for part in ("comparisons", "summary", "warnings")}
            for case, found in digits["compare_scores"].items()
        },
        "reference_statistics": run["reference_statistics"],
        "known_defects": {
            name: run["known_defects"][name]
            for name in ("auroc_one_absent_class", "holm_makes_significance_unreachable_3x6_wilcoxon")
        },
    }


def main() -> None:
    """Write oracle.json and oracle.npz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--logits", type=Path, required=True)
    arguments = parser.parse_args()
    ASSETS.mkdir(parents=True, exist_ok=True)
    content = extract(json.loads(arguments.run.read_text()))
    (ASSETS / "oracle.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")
    with np.load(arguments.logits) as logits:
        arrays = {"target": logits["y"].astype(np.uint8)}
        for method in ("linear", "mlp"):
            arrays[f"{method}_labels"] = logits[method].argmax(axis=-1).astype(np.uint8)
            arrays[f"{method}_logits_seed0"] = logits[method][0]
    np.savez_compressed(ASSETS / "oracle.npz", **arrays)
    print(f"wrote {ASSETS}")


if __name__ == "__main__":
    main()
