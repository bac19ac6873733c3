"""Several devices, and several processes, give one device's results to the bit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fusion_eval import compare
from fusion_eval.errors import ConfigError, EvaluationError
from fusion_eval.evaluation import replicas, spill

OPTIONS: dict[str, Any] = {"num_classes": 3, "resamples": 200, "metrics": ["accuracy", "f1", "auroc", "nll"]}


def models() -> dict[str, list[nn.Module]]:
    torch.manual_seed(0)
    return {name: [nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)) for _ in range(2)] for name in "ab"}


def batches(items: int = 71) -> DataLoader[Any]:
    x = torch.randn(items, 5, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, torch.arange(items) % 3), batch_size=8)


@pytest.mark.parametrize("count", [2, 3, 12])
def test_devices_of_one_process_share_the_batches(count: int) -> None:
    alone, shared = (
        compare(models(), batches(), **OPTIONS),
        compare(models(), batches(), device=["cpu"] * count, **OPTIONS),
    )
    assert alone.data.equals(shared.data)
    assert repr(alone.comparisons) == repr(shared.comparisons)
    assert shared.receipt["device"].count("cpu") == count


def test_lists_of_batches_and_dense_tasks_are_shared_too() -> None:
    maps = torch.randn(9, 3, 6, 6, generator=torch.Generator().manual_seed(2))
    data = [(maps[i : i + 2], maps[i : i + 2].argmax(1)) for i in range(0, 9, 2)]
    nets = {name: nn.Conv2d(3, 3, 1) for name in "ab"}
    options: dict[str, Any] = {"task": "segmentation", "num_classes": 3, "resamples": 200}
    assert compare(nets, data, **options).data.equals(compare(nets, data, device=["cpu", "cpu"], **options).data)


def test_large_outputs_are_put_in_order_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = compare(models(), batches(), **OPTIONS)
    monkeypatch.setattr(replicas, "SPILL_BYTES", 64)
    monkeypatch.setattr(replicas, "PIECE_BYTES", 100)
    monkeypatch.setattr(spill, "SPILL_BYTES", 64)
    assert alone.data.equals(compare(models(), batches(), device=["cpu"] * 3, **OPTIONS).data)


class Fails(nn.Module):
    """A model that fails from the sixteenth item on, or cannot be copied."""

    def __init__(self, copies: bool = True) -> None:
        super().__init__()
        self.copies = copies
        self.calls = 0

    def __deepcopy__(self, memo: Any) -> nn.Module:
        if not self.copies:
            raise TypeError("no copies")
        return Fails()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        self.calls += 1
        if self.calls > 1 and self.copies:
            raise ValueError("boom")
        return x[:, :3]


@pytest.mark.parametrize(
    ("copies", "message"), [(True, "method 'a'.*boom"), (False, "method 'a'.*cannot be copied to cpu")]
)
def test_a_failure_on_one_device_is_told(copies: bool, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        compare({"a": Fails(copies), "b": Fails(copies)}, batches(), device=["cpu", "cpu"], **OPTIONS)


@pytest.mark.parametrize(
    ("place", "message"),
    [("meta", "holds no numbers"), ("gpu", "a device of this machine"), ([], "no devices"), (["cpu", "gpu"], "'gpu'")],
)
def test_devices_that_are_none(place: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"device: .*{message}"):
        compare(models(), batches(), device=place, **OPTIONS)


def test_a_fabric_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"fabric: a int"):
        compare(models(), batches(), fabric=3, **OPTIONS)


RANKS = """
import pickle, sys
from pathlib import Path
from lightning.fabric import Fabric
from fusion_eval import compare
from fusion_eval.errors import FusionEvalError
from tests.program.compare.test_devices import OPTIONS, Fails, batches, models

def work(fabric, folder):
    found = compare(models(), batches(), fabric=fabric, cache=folder / "rows", **OPTIONS)
    try:
        compare({"a": Fails(), "b": Fails()}, batches(), fabric=fabric, **OPTIONS)
        failure = ""
    except FusionEvalError as error:
        failure = str(error)
    few = compare(models(), batches(5), fabric=fabric, **OPTIONS)
    (folder / f"{fabric.global_rank}.pkl").write_bytes(pickle.dumps((found.comparisons, few.comparisons, failure)))

world, folder = int(sys.argv[1]), Path(sys.argv[2])
Fabric(accelerator="cpu", devices=world, strategy="ddp_fork").launch(work, folder)
"""


@pytest.mark.dist
@pytest.mark.parametrize("world", [2, 3])
def test_processes_of_a_fabric_get_the_same_result(world: int, tmp_path: Path, repo_root: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    environment = {**os.environ, "PYTHONPATH": str(repo_root), "OMP_NUM_THREADS": "1"}
    for _ in range(2):  # then the rows come from the cache, on rank zero only
        subprocess.run([sys.executable, str(script), str(world), str(tmp_path)], env=environment, check=True)
        alone, few = compare(models(), batches(), **OPTIONS), compare(models(), batches(5), **OPTIONS)
        for rank in range(world):
            found, of_few, failure = pickle.loads((tmp_path / f"{rank}.pkl").read_bytes())
            assert repr(found) == repr(alone.comparisons)
            assert repr(of_few) == repr(few.comparisons)
            assert "boom" in failure
