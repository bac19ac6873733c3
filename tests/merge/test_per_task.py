"""Models per task: decoded lazily, saved compactly, read again to the same bits."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import CheckpointError, OutputError
from fusion_eval.merge.per_task import TaskCheckpoints, packed, unpacked
from fusion_eval.method.bitdelta import BitDelta
from fusion_eval.method.emr import Emr
from fusion_eval.method.step import TaskSingularVectors
from fusion_eval.method.tall_masks import TallMasks
from fusion_eval.method.tsv_c import TsvC
from tests.method.conftest import pool_of

METHODS = [Emr(), Emr([TaskSingularVectors()]), TallMasks(), TsvC(), BitDelta()]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_saved_merge_is_read_to_the_same_bits(method, tmp_path):
    pool = pool_of(3)
    merged = method.apply(pool)
    merged.save(tmp_path / "saved")
    again = TaskCheckpoints.load(tmp_path / "saved", pool.checkpoint("base"))
    assert list(again) == list(merged) == ["task0", "task1", "task2"]
    for task, model in merged.items():
        assert all(torch.equal(model[name], again[task][name]) for name in model)
    assert all(torch.equal(merged.shared[name], again.shared[name]) for name in merged.shared)


def test_emr_keeps_the_sign_and_the_mean_magnitude_of_each_task():
    pool = pool_of(3)
    merged = Emr(tensors={"statistics": "merge"}).apply(pool)
    for task, model in merged.items():
        before = after = 0.0
        for name, tensor in pool.base.items():
            if tensor.is_floating_point():
                delta, change = pool.experts[task][name] - tensor, model[name] - tensor
                assert (change * delta >= -1e-6).all()
                before, after = before + delta.abs().sum(), after + change.abs().sum()
        torch.testing.assert_close(before, after, rtol=1e-4, atol=0)


def test_tall_masks_of_one_task_are_all_on():
    pool = pool_of(1)
    model = TallMasks(0.5).apply(pool)["task0"]
    name = "head.weight"
    torch.testing.assert_close(model[name], pool.experts["task0"][name])


def test_tsv_c_at_full_rank_is_the_expert():
    pool = pool_of(2)
    merged = TsvC(1.0, tensors={"statistics": "merge"}).apply(pool)
    for task, model in merged.items():
        for name, tensor in pool.experts[task].items():
            if tensor.is_floating_point():
                torch.testing.assert_close(model[name], tensor, rtol=1e-4, atol=1e-5)


def test_bitdelta_is_the_nearest_multiple_of_the_signs():
    pool = pool_of(1)
    name = "layers.0.linear.weight"
    delta = pool.experts["task0"][name] - pool.base[name]
    change = BitDelta().apply(pool)["task0"][name] - pool.base[name]
    best = (delta - change).square().sum()
    for factor in (0.9, 1.1):
        assert (delta - factor * change).square().sum() > best


def test_saved_parts_are_small(tmp_path):
    pool = pool_of(3)
    Emr().apply(pool).save(tmp_path / "emr")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "emr").glob("*.safetensors")}
    numel = sum(tensor.numel() for tensor in pool.base.values())
    assert sizes["task-task0.safetensors"] < numel + 2500  # an eighth of a byte an entry, and headers
    assert sizes["shared.safetensors"] < 4 * numel + 2500


def test_packing():
    for count in (0, 1, 7, 8, 9, 100):
        mask = torch.rand(count) > 0.5
        assert torch.equal(unpacked(packed(mask), mask.shape), mask)


def test_an_unknown_task_or_folder_or_base_is_an_error(tmp_path):
    pool = pool_of(2)
    merged = Emr().apply(pool)
    with pytest.raises(CheckpointError, match="Did you mean"):
        merged["task"]
    with pytest.raises(CheckpointError, match=r"tasks\.json"):
        TaskCheckpoints.load(tmp_path, pool.checkpoint("base"))
    merged.save(tmp_path / "saved")
    other = {name: tensor for name, tensor in pool.base.items() if name != "head.weight"}
    from fusion_eval.merge.checkpoint import StateDictCheckpoint

    with pytest.raises(CheckpointError, match="another base"):
        TaskCheckpoints.load(tmp_path / "saved", StateDictCheckpoint(other))


def test_a_base_of_the_same_shapes_is_another_base(tmp_path):
    pool, other = pool_of(2), pool_of(2)
    BitDelta().apply(pool).save(tmp_path / "saved")
    other.base["head.weight"] = other.base["head.weight"] + 1
    with pytest.raises(CheckpointError, match="another base"):
        TaskCheckpoints.load(tmp_path / "saved", other.checkpoint("base"))


def test_a_folder_of_tasks_appears_whole_or_not_at_all(tmp_path):
    def broken(folder):
        raise KeyboardInterrupt

    merged = BitDelta().apply(pool_of(2))
    with pytest.raises(KeyboardInterrupt):
        merged.save(tmp_path / "saved", broken)
    assert not list(tmp_path.iterdir())
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="a folder with files in it"):
        merged.save(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
