"""Large columns in files: the same rows, nothing left behind, bounded memory, also from several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fusion_eval.errors import EvaluationError, FusionEvalError
from fusion_eval.evaluation import gathering, spill
from fusion_eval.evaluation.gathering import gathered
from fusion_eval.evaluation.measure import measure
from fusion_eval.evaluation.rows import Rows
from fusion_eval.evaluation.spill import ColumnFile, GrowingRows, pieces
from fusion_eval.forms.measured_forms import forms_of
from fusion_eval.program.compare.row_cache import RowCache
from fusion_eval.stats.item_metric import ItemMetric
from tests.task.measuring import rows_of
from tests.task.tables import Table, loader, noise

N = 90


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Everything is large, and files lie in an empty folder."""
    for module in (spill, gathering):
        monkeypatch.setattr(module, "SPILL_BYTES", 64)
        monkeypatch.setattr(module, "PIECE_BYTES", 100)
    monkeypatch.setattr(pieces, "__defaults__", (64,))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def part(start: int, stop: int, dtype: torch.dtype = torch.float32) -> Rows:
    ids = torch.arange(start, stop)
    return Rows(ids, {"probs": torch.stack([ids, -ids, ids / 7], 1).to(dtype), "pred": ids % 3, "text": ids.tolist()})


def is_mapped(tensor: Tensor) -> bool:
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return "fusion_eval_" in line or "deleted" in line
    return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_columns_come_back_and_leave_no_file(small: Path, dtype: torch.dtype) -> None:
    growing = GrowingRows()
    for start in range(0, N, 20):
        growing.add(part(start, min(start + 20, N), dtype))
    rows, whole = growing.rows(), part(0, N, dtype)
    assert torch.equal(rows.ids, whole.ids)
    assert list(small.iterdir()) == []
    for name, column in whole.columns.items():
        found = rows.columns[name]
        assert torch.equal(found, column) if isinstance(column, Tensor) else found == column
    if sys.platform == "linux":
        assert is_mapped(rows.columns["probs"])  # type: ignore[arg-type]


def test_columns_whose_shape_changes_stay_in_memory(small: Path) -> None:
    growing = GrowingRows()
    shapes = [(4, 30), (4, 30), (4, 31), (4, 30)]
    for i, shape in enumerate(shapes):
        growing.add(Rows(torch.arange(4) + 4 * i, {"probs": torch.full(shape, float(i))}))
    found = growing.rows().columns["probs"]
    assert [tuple(entry.shape) for entry in found] == [(n,) for _, n in shapes for _ in range(4)]
    assert [float(entry[0]) for entry in found] == [i for i in range(4) for _ in range(4)]


def test_a_full_disk_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    file = ColumnFile(torch.zeros(2, 3))
    monkeypatch.setattr(file, "_file", Full())
    with pytest.raises(EvaluationError, match="TMPDIR"):
        file.add(torch.zeros(2, 3))


@pytest.mark.parametrize("name", ["classification", "binary", "regression"])
def test_metrics_and_forms_do_not_notice(name: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"classification": (N, 5), "binary": (N,), "regression": (N, 2)}
    outputs = noise(0, shapes[name])
    target = {"classification": torch.arange(N) % 4, "binary": torch.arange(N) % 2, "regression": noise(1, (N, 2))}[
        name
    ]
    classes = {"classification": 5, "binary": None, "regression": 2}[name]
    spilled, step = rows_of(name, Table(outputs), loader(target, 7), classes)
    found = measure(spilled, step.task, step.battery, "t")
    forms = forms_of(spilled, found, step.task, step.battery)
    monkeypatch.undo()
    plain, _ = rows_of(name, Table(outputs), loader(target, 7), classes)
    expected = measure(plain, step.task, step.battery, "t")
    assert found.values == pytest.approx(expected.values, abs=1e-6)
    for metric, form in forms_of(plain, expected, step.task, step.battery).items():
        mine = forms[metric]
        assert type(mine) is type(form)
        if isinstance(form, ItemMetric):
            assert mine.value == pytest.approx(form.value, abs=1e-9)  # type: ignore[union-attr]


class Meeting:
    """Ranks that are threads."""

    def __init__(self, world: int) -> None:
        self.world, self.barrier, self.box = world, threading.Barrier(world), [None] * world

    def rank(self, rank: int) -> Any:
        meeting = self

        class Rank:
            world, is_zero = meeting.world, rank == 0

            def gather(self, item: Any) -> list[Any]:
                return meeting.shared(rank, item) if rank == 0 else meeting.shared(rank, item)[:0]

            def broadcast(self, item: Any) -> Any:
                return meeting.shared(rank, item)[0]

        return Rank()

    def shared(self, rank: int, item: Any) -> list[Any]:
        self.barrier.wait()
        self.box[rank] = item
        self.barrier.wait()
        return list(self.box)


def on_ranks(world: int, rows: list[Rows | FusionEvalError], items: int | None) -> list[Any]:
    meeting, found = Meeting(world), [None] * world

    def work(rank: int) -> None:
        try:
            found[rank] = gathered(meeting.rank(rank), rows[rank], items, "t")  # type: ignore[call-overload]
        except FusionEvalError as error:
            found[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("items", [3, 23, N])
def test_large_columns_of_ranks_come_in_pieces(small: Path, world: int, items: int) -> None:
    dealt = [
        Rows.join([part(i, min(i + 5, items)) for i in range(5 * rank, items, 5 * world)]) for rank in range(world)
    ]
    first, *others = on_ranks(world, list(dealt), items)
    assert others == [None] * (world - 1)
    whole = part(0, items)
    assert torch.equal(first.columns["probs"], whole.columns["probs"])
    assert first.columns["text"] == whole.columns["text"]


def test_an_error_of_one_rank_reaches_all_before_pieces_are_sent(small: Path) -> None:
    error = EvaluationError()
    assert on_ranks(2, [part(0, 60), error], 90) == [error, error]


def test_rows_in_files_are_cached(small: Path) -> None:
    growing = GrowingRows()
    growing.add(part(0, N))
    cache = RowCache(small / "rows", "data", "task")
    cache.write("model", growing.rows())
    kept = cache.read("model")
    assert kept is not None
    assert torch.equal(kept.columns["probs"], part(0, N).columns["probs"])  # type: ignore[arg-type]


MEMORY = """
import sys, threading, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from fusion_eval import compare
import scipy.stats, torchmetrics, fusion_eval.program.compare.models
items, classes = 40_000, 1000
x, y = torch.randn(items, 8), torch.arange(items) % classes
def anonymous():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) / 1024
peak, done = [0.0], []
def watch():
    while not done:
        peak[0] = max(peak[0], anonymous()); time.sleep(0.01)
compare({"a": nn.Linear(8, 10)}, [(x[:20], y[:20] % 10)], num_classes=10)
start = anonymous(); thread = threading.Thread(target=watch); thread.start()
loader = DataLoader(TensorDataset(x, y), 100)
compare({"a": nn.Linear(8, classes)}, loader, num_classes=classes, metrics=["accuracy", "ece"])
done.append(1); thread.join(); print(peak[0] - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_outputs() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 150, "the outputs alone are 153 MB, in float64 305 MB"
