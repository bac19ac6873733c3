"""The default run: CPU seconds of its own, beside importing torch, merging and the forward passes.

    scripts/bench default [--runs 5]

Own overhead = CPU of `fusion_eval` - CPU of `import torch` - the report's merge, load and evaluate phases (one thread:
their wall time is CPU time on an idle machine). Wanted: below 1.5 s; the whole run below 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path


def cpu_of(command: list[str], folder: str) -> float:
    """CPU seconds of a command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, cwd=folder, env=environment, check=True, **quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    python = sys.executable
    torch, whole, work = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(runs):
            torch.append(cpu_of([python, "-c", "import torch"], folder))
            whole.append(cpu_of([python, "-m", "fusion_eval", f"output={index}", "progress=false"], folder))
            seconds = json.loads((Path(folder) / str(index) / "report.json").read_text())["seconds"]
            work.append(sum(seconds.get(phase, 0.0) for phase in ("merge", "load", "evaluate")))
    own = min(whole) - min(torch) - min(work)
    print(f"import torch          {min(torch):6.2f} CPU s")
    print(f"default run           {min(whole):6.2f} CPU s  ({min(whole) / min(torch):.2f} x torch; wanted below 10 s)")
    print(f"  merge, load, evaluate {min(work):4.2f} s")
    print(f"  own overhead        {own:6.2f} CPU s  (wanted below 1.5)")


if __name__ == "__main__":
    main()
