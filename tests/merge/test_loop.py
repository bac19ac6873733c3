from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.loop import Loop, ahead, one_torch_thread, stream

_MERGE = """
import sys, threading
import torch
from safetensors.torch import save_file
from fusion_eval.merge.engine import AlignedPool, Loop, MergedCheckpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.group import ElementwiseRule
from fusion_eval.merge.sinks import save_checkpoint

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

def mean(group):
    return torch.stack(group.values()).mean(0)

root, kind = sys.argv[1:]
tensor = torch.ones(4 << 20)  # 16 MiB
for model in "ab":
    save_file({f"{index}.weight": tensor.clone() for index in range(16)}, f"{root}/{model}.safetensors")
del tensor
rule = ElementwiseRule(mean) if kind == "slices" else mean
pool = AlignedPool(None, {model: open_checkpoint(f"{root}/{model}.safetensors") for model in "ab"})
merged = MergedCheckpoint(rule, pool)
merged["0.weight"].sum()
before, peak, stop = anonymous(), [0.0], threading.Event()

def watch():
    while not stop.wait(0.002):
        peak[0] = max(peak[0], anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
save_checkpoint(merged, f"{root}/out", shard_bytes=1 << 28, loop=Loop(threads=2))
stop.set()
watcher.join()
print(peak[0] - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(("kind", "bound"), [("slices", 48), ("whole", 16 * 4 * 2 * 2)])
def test_memory_does_not_grow_with_the_model(tmp_path: Path, repo_root: Path, kind: str, bound: int) -> None:
    """A merge of 2 x 256 MiB: by slices nearly nothing, by whole tensors a few of 16 MiB per thread (in MiB)."""
    command = [sys.executable, "-c", _MERGE, str(tmp_path), kind]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=True)
    assert float(done.stdout) < bound


def test_items_come_ahead_in_order_from_another_thread() -> None:
    threads = []

    def items():
        for index in range(20):
            threads.append(threading.current_thread())
            yield index

    assert list(ahead(items())) == list(range(20))
    if len(os.sched_getaffinity(0)) > 1:
        assert threading.current_thread() not in threads


def test_errors_of_items_are_raised_where_they_are_used() -> None:
    def items():
        yield 1
        raise ValueError("two")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="two"):
        next(found)


def test_items_that_are_not_wanted_any_more_stop_their_thread() -> None:
    before = threading.active_count()
    found = ahead(iter(range(10**9)))
    assert next(found) == 0
    found.close()
    assert threading.active_count() == before


def test_the_number_of_torch_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with one_torch_thread():
        assert torch.get_num_threads() == 1
    list(ahead(iter([1, 2])))
    stream(StateDictCheckpoint({"a": torch.ones(3)}), Nothing(), loop=Loop(threads=2))
    assert torch.get_num_threads() == before


class Nothing:
    def write(self, name: str, tensor: torch.Tensor, start: int = 0) -> None:
        assert torch.get_num_threads() == 1
