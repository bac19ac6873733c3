"""Merging files to files: our engine against the floor and, with --peer, against mergekit, interleaved in one run.

    scripts/bench merge                                              reduced inputs, ours and the floor
    scripts/bench merge --size full --peer VENV/bin/mergekit-yaml    4 models of 534 MiB, both engines
    scripts/bench merge --size full --methods linear,ties --reps 3

Every figure is that of a new process, the page cache warm. `start` is the process without a merge (imports only for
ours, `--help` for the peer); `net` is CPU seconds without it. `anon` is the peak of anonymous memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = {
    "small": {"hidden": 512, "layers": 8, "vocab": 8000, "inter": 1024, "heads": 8, "kv_heads": 2},
    "full": {"hidden": 1024, "layers": 24, "vocab": 32000, "inter": 2048, "heads": 16, "kv_heads": 4},
    "many": {"tensors": 8000},
    "large": {"hidden": 2048, "layers": 24, "vocab": 32000, "inter": 4096, "heads": 16, "kv_heads": 4},
}
SPREAD = {"ft1": 0.0010, "ft2": 0.0015, "ft3": 0.0020}
WEIGHTS, HALVES = [0.5, 0.3, 0.4], [0.5] * 3
TIMES = ("user_s", "sys_s")


@dataclass(frozen=True)
class Case:
    """One merge, as our method and as the peer's recipe.

    Args:
        ours: module and class of `fusion_eval.method`.
        options: its keywords.
        peer: the peer's method.
        experts: how many of the three fine-tunes take part.
        base: whether the base does.
        per: the peer's parameters per model.
        shared: the peer's other parameters.
    """

    ours: str
    options: dict[str, Any]
    peer: str
    experts: int = 3
    base: bool = True
    per: dict[str, list[float]] | None = None
    shared: dict[str, Any] | None = None


def weighted(**more: list[float]) -> dict[str, list[float]]:
    return {"weight": WEIGHTS, **more}


def with_density(ours: str, peer: str, density: float = 0.5, **options: Any) -> Case:
    per = weighted(density=[density] * 3, **{k: [v] * 3 for k, v in options.items() if k in ("epsilon", "gamma")})
    return Case(ours, {"density": density, "weights": WEIGHTS, **options}, peer, per=per)


CASES = {
    "linear": Case("weighted_average.WeightedAverage", {"weights": WEIGHTS}, "linear", base=False, per=weighted()),
    "task_arithmetic": Case(
        "task_arithmetic.TaskArithmetic", {"weights": WEIGHTS, "scaling": 1.0}, "task_arithmetic", per=weighted()
    ),
    "ties": with_density("ties.Ties", "ties", scope="tensor"),
    "dare_linear": with_density("dare.Dare", "dare_linear", scaling=1.0, rescale="norm"),
    "dare_ties": with_density("dare.DareTies", "dare_ties", rescale="norm", combine="sum"),
    "della": with_density("della.Della", "della", epsilon=0.1, rescale="norm"),
    "breadcrumbs": with_density("breadcrumbs.Breadcrumbs", "breadcrumbs", 0.9, gamma=0.01, scaling=1.0),
    "sce": Case("sce.Sce", {"select_topk": 0.5}, "sce", shared={"select_topk": 0.5}),
    "model_stock": Case("model_stock.ModelStock", {}, "model_stock"),
    "karcher": Case("karcher.Karcher", {}, "karcher", base=False),
    "multislerp": Case("multislerp.MultiSlerp", {"weights": WEIGHTS}, "multislerp", base=False, per=weighted()),
    "nuslerp": Case("nuslerp.NuSlerp", {"weights": WEIGHTS[:2]}, "nuslerp", 2, base=False, per={"weight": WEIGHTS[:2]}),
    "ram": Case("ram.Ram", {}, "ram"),
    "slerp": Case("slerp.Slerp", {"t": 0.4}, "slerp", 1, shared={"t": 0.4}),
    "nearswap": Case("nearswap.NearSwap", {"t": 0.001}, "nearswap", 1, shared={"t": 0.001}),
    "arcee_fusion": Case("arcee_fusion.ArceeFusion", {}, "arcee_fusion", 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--methods", default=",".join(CASES), help="names, with commas")
    parser.add_argument("--reps", type=int, default=2, help="the best of so many runs counts")
    parser.add_argument("--peer", type=Path, help="the peer's executable mergekit-yaml, or its bin folder")
    parser.add_argument("--peer-float32", action="store_true", help="the peer computes in float32 too, as ours does")
    parser.add_argument(
        "--root", type=Path, help="where inputs are kept for the next run (default: removed at the end)"
    )
    parser.add_argument("--json", type=Path, help="append the figures to this JSON-lines file")
    parser.add_argument("--child", nargs=3, metavar=("METHOD", "ROOT", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size == "many" and options.peer:
        parser.error("--size many has no architecture, which the peer's command needs")
    if options.child:
        child(options.child[0], Path(options.child[1]), Path(options.child[2]))
        return
    with folder(options.root) as root:
        make_inputs(root, options.size)
        rows = [kept(row, options) for row in baseline(root, options)]
        for name in options.methods.split(","):
            rows += [kept(row, options) for row in measured(root, name, options)]
    print_table(rows)


def kept(row: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The row, written down at once."""
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps({"size": options.size, **row}) + "\n")
    return row


def child(name: str, root: Path, out: Path) -> None:
    """One merge in this process: what a user's script does."""
    import importlib

    from fusion_eval.merge.sinks import save_checkpoint
    from fusion_eval.modelpool.checkpoint_pool import CheckpointPool

    if name == "nothing":
        importlib.import_module("fusion_eval.method.task_arithmetic")
        return
    case = CASES[name]
    module, kind = case.ours.split(".")
    method = getattr(importlib.import_module(f"fusion_eval.method.{module}"), kind)(**case.options)
    names = experts(case)
    pool = CheckpointPool(str(root / "base") if case.base else None, {n: str(root / n) for n in names})
    save_checkpoint(method.apply(pool, seed=42), out)


def experts(case: Case) -> list[str]:
    return [*SPREAD][-1:] if case.experts == 1 else [*SPREAD][: case.experts]


def recipe(case: Case, root: Path, float32: bool) -> dict[str, Any]:
    """The peer's configuration."""
    models: list[dict[str, Any]] = []
    for index, name in enumerate(experts(case)):
        parameters = {key: values[index] for key, values in (case.per or {}).items()}
        models.append({"model": str(root / name), **({"parameters": parameters} if parameters else {})})
    if case.peer in ("slerp", "arcee_fusion"):
        models.insert(0, {"model": str(root / "base")})
    dtype = {"dtype": "float32", "out_dtype": "bfloat16"} if float32 else {"dtype": "bfloat16"}
    found: dict[str, Any] = {"merge_method": case.peer, "models": models, **dtype}
    if case.base:
        found["base_model"] = str(root / "base")
    if case.shared:
        found["parameters"] = case.shared
    return found


def measured(root: Path, name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Figures of one method, ours and the peer's in turn."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(options.reps):
        for who, command in commands(root, name, options).items():
            shutil.rmtree(root / "out", ignore_errors=True)
            row = {"case": name, "who": who, **timed(command)}
            if row["rc"]:
                sys.exit(f"{name} ({who}) failed:\n{row['log']}")
            if who not in best or cpu(row) < cpu(best[who]):
                best[who] = row
    yield from best.values()


def commands(root: Path, name: str, options: argparse.Namespace) -> dict[str, list[str]]:
    ours = [sys.executable, __file__, "--child", name, str(root), str(root / "out")]
    found = {"ours": ours}
    if options.peer:
        config = root / f"{name}.yml"
        config.write_text(json.dumps(recipe(CASES[name], root, options.peer_float32)))
        flags = ["--no-copy-tokenizer", "--quiet", "--random-seed", "42"]
        found["peer"] = [str(executable(options.peer)), str(config), str(root / "out"), *flags]
    return found


def executable(peer: Path) -> Path:
    return peer / "mergekit-yaml" if peer.is_dir() else peer


FLOOR = """
import sys, glob, os
import torch
from safetensors import safe_open
from safetensors.torch import save_file
keep = {}
for folder in sys.argv[2:]:
    for file in sorted(glob.glob(folder + "/*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                tensor = opened.get_tensor(name)
                tensor.view(-1).view(torch.uint8)[::4096].sum()  # touch every page, no more
                if folder == sys.argv[2]:
                    keep[name] = tensor
os.makedirs(sys.argv[1])
save_file(keep, sys.argv[1] + "/model.safetensors")
"""


def baseline(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The floor, and what each engine takes to start."""
    models = [str(root / name) for name in ("base", *SPREAD)]
    wanted = {
        ("floor", "-"): [sys.executable, "-c", FLOOR, str(root / "out"), *models],
        ("start", "ours"): [sys.executable, __file__, "--child", "nothing", str(root), "-"],
    }
    if options.peer:
        wanted["start", "peer"] = [str(executable(options.peer)), "--help"]
    for (case, who), command in wanted.items():
        runs = []
        for _ in range(options.reps):
            shutil.rmtree(root / "out", ignore_errors=True)
            runs.append(timed(command))
        yield {"case": case, "who": who, **min(runs, key=cpu)}


def timed(command: Sequence[str]) -> dict[str, Any]:
    """Wall and CPU seconds and the peak of anonymous memory of a process."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    peak, stop = [0], threading.Event()
    with tempfile.TemporaryFile("w+") as log:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        watcher = threading.Thread(target=watch, args=(process.pid, peak, stop), daemon=True)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        stop.set()
        watcher.join()
        log.seek(0)
        text = log.read()[-4000:] if process.returncode else ""
    return {
        "rc": process.returncode,
        "wall_s": round(wall, 2),
        "user_s": round(usage.ru_utime, 2),
        "sys_s": round(usage.ru_stime, 2),
        "anon_mb": round(peak[0] / 1024),
        "load": round(os.getloadavg()[0], 1),
        "log": text,
    }


def watch(pid: int, peak: list[int], stop: threading.Event) -> None:
    while not stop.wait(0.01):
        try:
            peak[0] = max(peak[0], anonymous(pid))
        except (OSError, ValueError):
            return


def anonymous(pid: int) -> int:
    """Anonymous memory of a process in kB; with that of its children, in which pages that they share count once."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    total = 0
    for each in (str(pid), *children):
        with suppress(OSError):  # a child that has just ended
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon"))
    return total


def cpu(row: dict[str, Any]) -> float:
    return sum(row[key] for key in TIMES)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    start = {row["who"]: cpu(row) for row in rows if row["case"] == "start"}
    found = {(row["case"], row["who"]): row for row in rows}
    print("| method | engine | wall s | CPU s | net CPU s | wall/CPU | anon MB | peer / ours, net | load |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (case, who), row in found.items():
        net = cpu(row) - start.get(who, 0) if case not in ("floor", "start") else float("nan")
        ratio = ""
        if who == "ours" and (case, "peer") in found and case != "start":
            ratio = f"{(cpu(found[case, 'peer']) - start['peer']) / max(net, 0.01):.1f}"
        cells = f"{row['wall_s']:.2f} | {cpu(row):.2f} | {net:.2f} | {row['wall_s'] / max(cpu(row), 0.01):.2f}"
        print(f"| {case} | {who} | {cells} | {row['anon_mb']} | {ratio} | {row['load']} |".replace("nan", ""))


@contextmanager
def folder(root: Path | None) -> Iterator[Path]:
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="bench_merge_") as made:
        yield Path(made)


def make_inputs(root: Path, size: str) -> None:
    """A base and three fine-tunes: Llama-shaped bfloat16 checkpoints of Gaussian weights."""
    import torch
    from safetensors.torch import save_file

    for name in ("base", *SPREAD):
        if (root / name / "config.json").exists():
            continue
        (root / name).mkdir(parents=True, exist_ok=True)
        tensors = {}
        for tensor, shape in shapes(SIZES[size]).items():
            value = drawn(shape, f"base|{tensor}", 0.01 if len(shape) == 1 else 0.02) + (len(shape) == 1)
            if name != "base":
                value = value + drawn(shape, f"{name}|{tensor}", SPREAD[name])
            tensors[tensor] = value.to(torch.bfloat16)
        save_file(tensors, root / name / "model.safetensors", metadata={"format": "pt"})
        (root / name / "config.json").write_text(json.dumps(config(SIZES[size])))


def drawn(shape: tuple[int, ...], key: str, std: float) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(key.encode()))) * std


def shapes(size: dict[str, int]) -> dict[str, tuple[int, ...]]:
    if "tensors" in size:
        return {f"t.{index}.weight": (4, 4) for index in range(size["tensors"])}
    hidden, inter, vocab = size["hidden"], size["inter"], size["vocab"]
    small = hidden // size["heads"] * size["kv_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(size["layers"]):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "mlp.down_proj": (hidden, inter),
            "mlp.gate_proj": (inter, hidden),
            "mlp.up_proj": (inter, hidden),
            "post_attention_layernorm": (hidden,),
            "self_attn.k_proj": (small, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.v_proj": (small, hidden),
        }
        found |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def config(size: dict[str, int]) -> dict[str, Any]:
    if "tensors" in size:
        return {}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size["hidden"],
        "intermediate_size": size["inter"],
        "num_hidden_layers": size["layers"],
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"],
        "vocab_size": size["vocab"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


if __name__ == "__main__":
    main()
