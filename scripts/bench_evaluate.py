"""Evaluation speed: task pool and comparison against bare loops over the same loader; ratios within one run.

python scripts/bench_evaluate.py [--repeats 9] [--batches 157] [--large] [--json FILE]

One thread, CPU time. Figures: images per second of a bare `torch.inference_mode` accuracy loop; the pool with one
metric (target: 0.95 of it) and with six (target: 0.5 of it); `compare` on one model with six metrics (target: twice
the bare loop's time). With --large, `compare` on 50,000 items of 1,000 classes: CPU seconds, and by how many MiB the
anonymous memory grew at most (the probabilities alone are 191 MiB).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fusion_eval import compare
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.given import as_loader
from fusion_eval.evaluation.loop import evaluate_rows
from fusion_eval.evaluation.measure import measure
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.task import get_task
from fusion_eval.taskpool import ImageClassificationTaskPool

SIX = ["accuracy", "f1", "precision", "recall", "auroc", "ece"]
BATCH = 64


def digits_mlp() -> nn.Module:
    """The model of the recorded timing: 64 -> 32 -> 10."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).eval()


def small_cnn() -> nn.Module:
    """A model whose forward pass is worth something: 3 x 32 x 32 images, 10 classes."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


def bare(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Accuracy as one would write it by hand."""
    right = total = 0
    with torch.inference_mode():
        for x, y in loader:
            right += int((model(x).argmax(-1) == y).sum())
            total += len(y)
    return right / total


def pool_of(data: Dataset[Any], metrics: list[str]) -> ImageClassificationTaskPool:
    """A pool on one data set."""
    options = {"batch_size": BATCH}
    pool = ImageClassificationTaskPool({"task": data}, dataloader_kwargs=options, metrics=metrics, progress=False)
    pool.setup()
    return pool


def task_step(model: nn.Module, loader: DataLoader[Any]) -> None:
    """The six metrics as `compare` measures them."""
    task = get_task("classification")
    battery = task.battery(10)
    step = TaskStep("task", task, battery)
    rows = evaluate_rows(model, as_loader("task", loader), step, Devices(), False)
    assert rows is not None
    measure(rows, task, battery, "task")


def best(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The shortest time of each, the functions taking turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    return {name: min(each) for name, each in times.items()} | {"median_bare": statistics.median(times["bare"])}


def measure_case(model: nn.Module, data: Dataset[Any], repeats: int) -> dict[str, Any]:
    """Times and ratios of one model and data set."""
    loader = DataLoader(data, BATCH)
    one, six = pool_of(data, ["accuracy"]), pool_of(data, SIX)
    found = best(
        {
            "bare": lambda: bare(model, loader),
            "one": lambda: one.results(model),
            "six": lambda: six.results(model),
            "step": lambda: task_step(model, loader),
        },
        repeats,
    )
    items = len(data)  # type: ignore[arg-type]
    return {
        "items": items,
        "bare_ms": round(1e3 * found["bare"], 1),
        "bare_items_per_second": round(items / found["bare"]),
        "one_metric_throughput": round(found["bare"] / found["one"], 3),
        "six_metrics_throughput": round(found["bare"] / found["six"], 3),
        "six_metrics_time": round(found["six"] / found["bare"], 2),
        "compare_six_metrics_time": round(found["step"] / found["bare"], 2),
    }


def measure_large(items: int = 50_000, classes: int = 1_000) -> dict[str, Any]:
    """Memory and time of six metrics on large outputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(items, 32, generator=generator)
    loader = DataLoader(TensorDataset(x, torch.randint(0, classes, (items,), generator=generator)), BATCH)
    compare({"warm": nn.Linear(32, 10)}, [(x[:100], torch.arange(100) % 10)], num_classes=10)
    torch.manual_seed(0)
    model, peak, done, before = nn.Linear(32, classes), [0.0], threading.Event(), anonymous_mib()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    compare({"model": model}, loader, num_classes=classes)
    seconds = time.process_time() - start
    done.set()
    watcher.join()
    return {"items": items, "classes": classes, "cpu_s": round(seconds, 1), "peak_mib": round(peak[0] - before)}


def anonymous_mib() -> float:
    """This process's anonymous memory (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main() -> None:
    """Measure, print, and exit with 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batches", type=int, default=157)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    items = given.batches * BATCH
    labels = torch.randint(0, 10, (items,), generator=generator)
    vectors = TensorDataset(torch.rand(items, 64, generator=generator), labels)
    images = TensorDataset(torch.rand(items // 8, 3, 32, 32, generator=generator), labels[: items // 8])
    found = {
        "digits_mlp": measure_case(digits_mlp(), vectors, given.repeats),
        "small_cnn": measure_case(small_cnn(), images, max(3, given.repeats // 3)),
    }
    if given.large:
        print("large", json.dumps(measure_large()))
    for name, figures in found.items():
        print(name, json.dumps(figures))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    missed = [
        f"{name}: {key} is {figures[key]}, wanted {target}"
        for name, figures in found.items()
        for key, target in (("one_metric_throughput", 0.95), ("six_metrics_throughput", 0.5))
        if figures[key] < target
    ]
    sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
