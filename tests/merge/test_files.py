from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file, save_model
from torch import nn

from fusion_eval.errors import CheckpointError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.files import open_checkpoint
from tests.merge.conftest import assert_equal, small_state


def write_shards(folder: Path, suffix: str = "safetensors") -> dict[str, torch.Tensor]:
    state, stem = small_state(), "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(state)
    weight_map = {}
    for index, part in enumerate((names[:4], names[4:9], names[9:])):
        file = f"{stem}-{index + 1:05}-of-00003.{suffix}"
        weight_map |= dict.fromkeys(part, file)
        tensors = {name: state[name] for name in part}
        if suffix == "safetensors":
            save_file(tensors, folder / file)
        else:
            torch.save(tensors, folder / file)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return state


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def test_single_safetensors_in_each_dtype(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        state = small_state(dtype=dtype)
        save_file(state, tmp_path / "m.safetensors")
        assert_equal(open_checkpoint(tmp_path / "m.safetensors"), state)


def test_narrow_dtypes(tmp_path: Path) -> None:
    state = {"a": torch.arange(5, dtype=torch.int8), "b": torch.ones(3).to(torch.float8_e4m3fn)}
    save_file(state, tmp_path / "m.safetensors")
    opened = open_checkpoint(tmp_path / "m.safetensors")
    assert opened["b"].dtype == torch.float8_e4m3fn
    assert torch.equal(opened["b"].float(), torch.ones(3))


def test_sharded_folder_index_and_one_shard_open_the_same(tmp_path: Path) -> None:
    state = write_shards(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json", tmp_path / "model-00002-of-00003.safetensors"):
        assert_equal(open_checkpoint(path), state)


def test_folder_with_shards_but_no_index(tmp_path: Path) -> None:
    state = write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert_equal(open_checkpoint(tmp_path), state)


@pytest.mark.parametrize("key", [None, "state_dict", "model"])
def test_torch_files(tmp_path: Path, key: str | None) -> None:
    state = small_state(dtype=torch.bfloat16)
    torch.save(state if key is None else {key: state, "epoch": 3}, tmp_path / "m.pt")
    assert_equal(open_checkpoint(tmp_path / "m.pt"), state)


def test_sharded_torch_folder(tmp_path: Path) -> None:
    state = write_shards(tmp_path, "bin")
    assert_equal(open_checkpoint(tmp_path), state)


def test_torch_file_of_the_old_format(tmp_path: Path) -> None:
    state = small_state()
    torch.save(state, tmp_path / "m.bin", _use_new_zipfile_serialization=False)
    assert_equal(open_checkpoint(tmp_path / "m.bin"), state)


def test_tied_names_of_torch_files_and_of_safetensors_metadata(tmp_path: Path) -> None:
    module = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    module["b"].weight = module["a"].weight
    torch.save(module.state_dict(), tmp_path / "m.pt")
    save_model(module, str(tmp_path / "m.safetensors"))
    assert dict(open_checkpoint(tmp_path / "m.pt").tied) == {"b.weight": "a.weight"}
    opened = open_checkpoint(tmp_path / "m.safetensors")
    assert list(opened) == ["a.weight"]
    assert dict(opened.tied) == {"b.weight": "a.weight"}


def test_code_in_a_torch_file_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "b": Path("x")}, tmp_path / "m.pt")
    assert "weights_only" in refusal(tmp_path / "m.pt")


def test_missing_file_suggests_the_near_one(tmp_path: Path) -> None:
    save_file(small_state(), tmp_path / "expert.safetensors")
    assert "Did you mean 'expert.safetensors'" in refusal(tmp_path / "exprt.safetensors")


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "empty file"), (b"\x05" + bytes(7) + b"[1,2]", "not a JSON object"), (b"{}" * 40, "header")],
)
def test_files_that_are_no_checkpoints(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    assert expected in refusal(path)


def test_folder_without_weights_and_adapter_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "no weights among config.json" in refusal(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file(small_state(), tmp_path / "adapter_model.safetensors")
    assert "holds an adapter" in refusal(tmp_path)


def test_wrong_index_names_the_shard(tmp_path: Path) -> None:
    write_shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = sorted(content["weight_map"])[0]
    content["weight_map"]["ghost"] = "model-00002-of-00003.safetensors"
    del content["weight_map"][first]
    index.write_text(json.dumps(content))
    message = refusal(tmp_path)
    assert "model-00002-of-00003.safetensors: lacks 1 tensors: ghost" in message
    assert f"model-00001-of-00003.safetensors: has 1 tensors that belong elsewhere: {first}" in message


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    assert "model-00003-of-00003.safetensors: no such shard" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_folder(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    assert "cannot be listed" in refusal(folder)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_truncation_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("cut") / "m.safetensors"
    save_file(small_state(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CheckpointError):
        open_checkpoint(path)


def test_truncated_torch_file(tmp_path: Path) -> None:
    torch.save(small_state(), tmp_path / "m.pt")
    whole = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(whole[: len(whole) // 2])
    refusal(tmp_path / "m.pt")


def test_a_file_that_changes_after_opening(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(small_state(), path)
    opened = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="changed since it was opened"):
        opened["scale"]


def test_reads_are_thread_safe_and_leave_no_handles(tmp_path: Path) -> None:
    state = write_shards(tmp_path)
    opened = open_checkpoint(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda name: (name, opened[name].clone()), list(state) * 20))
    assert all(torch.equal(tensor, state[name]) for name, tensor in read)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_writing_into_a_read_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    save_file(small_state(), tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()
    open_checkpoint(tmp_path / "m.safetensors")["embed.weight"].zero_()
    assert (tmp_path / "m.safetensors").read_bytes() == before


def test_fingerprint_is_of_the_weights_not_of_the_container(tmp_path: Path) -> None:
    state = write_shards(tmp_path)
    torch.save(state, tmp_path / "other.pt")
    prints = {c.fingerprint() for c in (open_checkpoint(tmp_path), open_checkpoint(tmp_path / "other.pt"))}
    assert prints == {StateDictCheckpoint(state).fingerprint()}
    state["scale"] = state["scale"] + 1
    assert StateDictCheckpoint(state).fingerprint() not in prints


def test_fingerprint_follows_a_changed_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(small_state(0), path)
    first = open_checkpoint(path).fingerprint()
    save_file(small_state(1), path)
    assert open_checkpoint(path).fingerprint() != first


def test_unknown_tensor_gets_a_hint(tmp_path: Path) -> None:
    save_file(small_state(), tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"Did you mean 'embed.weight'"):
        open_checkpoint(tmp_path / "m.safetensors")["embd.weight"]
