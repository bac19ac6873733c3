"""Merging modules in memory: ours and, with --peer, FusionBench's methods on the same modules, interleaved in one run.

    scripts/bench pool                                                     8 experts of 29 MB, ours
    scripts/bench pool --size full --peer VENV/bin/python                  8 experts of 340 MB, both
    scripts/bench pool --size quarter --methods tsv_m --peer VENV/bin/python   three layers of twelve: it takes minutes

A figure is that of the merge alone, from modules to a module, in a new process: imports and inputs are not counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from typing import Any

EXPERTS = 8
SIZES = {"small": (384, 4), "layer": (768, 1), "quarter": (768, 3), "full": (768, 12)}
OURS = {
    "task_arithmetic": ("task_arithmetic.TaskArithmetic", {"scaling": 0.3}),
    "ties": ("ties.Ties", {"density": 0.2, "scaling": 0.3, "combine": "sum"}),
    "tsv_m": ("tsv_m.TsvM", {}),
    "iso_c": ("iso_c.IsoC", {}),
}
PEERS = {
    "task_arithmetic": ("TaskArithmeticAlgorithm", {"scaling_factor": 0.3}),
    "ties": (
        "TiesMergingAlgorithm",
        {"scaling_factor": 0.3, "threshold": 20, "remove_keys": [], "merge_func": "sum"},
    ),
    "tsv_m": ("TaskSingularVectorMerging", {"alpha": 1.0}),
    "iso_c": ("ISO_C_Merge", {"scaling_factor": 1.0}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--methods", default=",".join(OURS))
    parser.add_argument("--reps", type=int, default=2, help="the best of so many runs counts")
    parser.add_argument("--peer", help="a Python interpreter with fusion-bench")
    parser.add_argument("--child", nargs=2, metavar=("WHO", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child, options.size)))
        return
    print("| method | engine | wall s | CPU s | peak anon MB | peer / ours, CPU |\n|---|---|---|---|---|---|")
    for method in options.methods.split(","):
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.reps):
            for who, python in {"ours": sys.executable, **({"peer": options.peer} if options.peer else {})}.items():
                row = run(python, who, method, options.size)
                if who not in best or row["cpu"] < best[who]["cpu"]:
                    best[who] = row
        for who, row in best.items():
            ratio = f"{best['peer']['cpu'] / row['cpu']:.1f}" if who == "ours" and "peer" in best else ""
            print(
                f"| {method} | {who} | {row['wall']:.2f} | {row['cpu']:.2f} | {row['anon']:.0f} | {ratio} |", flush=True
            )


def run(python: str, who: str, method: str, size: str) -> dict[str, float]:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    command = [python, __file__, "--child", who, method, "--size", size]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{method} ({who}) failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def child(who: str, method: str, size: str) -> dict[str, float]:
    """Seconds of one merge and the growth of anonymous memory at its end."""
    import torch

    width, layers = SIZES[size]
    base = model(width, layers, 0)
    experts = {f"expert{index}": model(width, layers, index + 1) for index in range(EXPERTS)}
    merge = {"ours": ours, "peer": peer}[who](method, base, experts)
    before, wall, cpu = anonymous(), time.perf_counter(), time.process_time()
    merged = merge()
    seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "anon": anonymous() - before}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in merged.state_dict().values())
    return seconds


def model(width: int, layers: int, seed: int) -> Any:
    """A transformer's weights, near those of seed 0."""
    import torch
    from torch import nn

    def block() -> nn.Module:
        parts = {name: nn.Linear(width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        parts |= {"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)}
        return nn.ModuleDict({**parts, "layer_norm1": nn.LayerNorm(width), "layer_norm2": nn.LayerNorm(width)})

    torch.manual_seed(0)
    network = nn.Module()
    network.encoder = nn.ModuleList([block() for _ in range(layers)])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if seed:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=1e-3)
    return network


def ours(method: str, base: Any, experts: dict[str, Any]) -> Any:
    from fusion_eval.modelpool.checkpoint_pool import ModulePool

    name, options = OURS[method]
    module, kind = name.split(".")
    made = getattr(importlib.import_module(f"fusion_eval.method.{module}"), kind)(**options)
    pool = ModulePool(base, experts)
    return lambda: pool.build(made.apply(pool))


def peer(method: str, base: Any, experts: dict[str, Any]) -> Any:
    import fusion_bench
    import lightning

    name, options = PEERS[method]
    made = getattr(importlib.import_module("fusion_bench.method"), name)(**options)
    made.fabric = lightning.Fabric(accelerator="cpu", devices=1)
    pool = fusion_bench.BaseModelPool({"_pretrained_": base, **experts})
    return lambda: made.run(pool)


def anonymous() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


if __name__ == "__main__":
    main()
