from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
