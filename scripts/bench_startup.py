"""CPU time of `fusion_eval --help`, `--cfg job` and tab completion, against a minimal Hydra application's.

Both run by turns in fresh processes; the least of several runs counts. The ratio should stay at or below 1.3.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINIMAL = """
import hydra

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def run(cfg):
    pass

run()
"""
OURS = "from fusion_eval.cli import main; main()"
QUERIES: dict[str, tuple[list[str], dict[str, str]]] = {
    "--help": (["--help"], {}),
    "--cfg job": (["--cfg", "job"], {}),
    "completion": (["-sc", "query=bash"], {"COMP_LINE": "app seed=", "COMP_POINT": "9"}),
}


def minimal_app(folder: Path) -> list[str]:
    """A script with one group and one option, as a tutorial would have it."""
    (folder / "conf" / "db").mkdir(parents=True)
    (folder / "conf" / "config.yaml").write_text("defaults:\n  - db: mysql\n  - _self_\nseed: 0\n")
    (folder / "conf" / "db" / "mysql.yaml").write_text("driver: mysql\nuser: me\n")
    (folder / "app.py").write_text(MINIMAL)
    return [sys.executable, str(folder / "app.py")]


def cpu_seconds(command: list[str], folder: Path, variables: dict[str, str]) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs = minimal_app(folder)
        ours = [sys.executable, "-c", OURS]
        print(f"{'':12s} {'minimal Hydra':>14s} {'fusion_eval':>12s} {'ratio':>6s}   (CPU ms, least of {runs})")
        for query, (argv, variables) in QUERIES.items():
            pairs = [
                (cpu_seconds([*theirs, *argv], folder, variables), cpu_seconds([*ours, *argv], folder, variables))
                for _ in range(runs)
            ]
            minimal, mine = (min(times) for times in zip(*pairs, strict=True))
            print(f"{query:12s} {minimal * 1e3:14.0f} {mine * 1e3:12.0f} {mine / minimal:6.2f}")


if __name__ == "__main__":
    main()
