from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from fusion_eval.errors import OutputError
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.loop import Loop
from fusion_eval.merge.sinks import ShardSink, save_checkpoint
from tests.merge.conftest import assert_equal, small_state


class Keyed(StateDictCheckpoint):
    """A state whose values are known by a key, which can fail while it is read."""

    def __init__(self, state: dict[str, Tensor], fail_at: str | None = None, key: str | None = "state") -> None:
        super().__init__(state)
        self.fail_at, self._key, self.reads = fail_at, key, []

    def key(self) -> str | None:
        return self._key

    def read(self, name: str) -> Tensor:
        self.reads.append(name)
        if name == self.fail_at:
            raise KeyboardInterrupt
        return super().read(name)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def refusal(checkpoint: Checkpoint, folder: Path, **options: object) -> str:
    with pytest.raises(OutputError) as caught:
        save_checkpoint(checkpoint, folder, **options)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("shard_bytes", [1, 100, 10**9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved_is_read_again_by_us_and_by_safetensors(
    tmp_path: Path, shard_bytes: int, dtype: torch.dtype
) -> None:
    state = small_state(dtype=dtype)
    folder = save_checkpoint(StateDictCheckpoint(state), tmp_path / "out", shard_bytes=shard_bytes)
    assert_equal(open_checkpoint(folder), state)
    found: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            assert file.metadata()["format"] == "pt"
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_names_and_index_are_those_of_hugging_face(tmp_path: Path) -> None:
    state = small_state()
    save_checkpoint(StateDictCheckpoint(state), tmp_path / "one")
    assert list(contents(tmp_path / "one")) == ["model.safetensors"]
    save_checkpoint(StateDictCheckpoint(state), tmp_path / "many", shard_bytes=200)
    files = list(contents(tmp_path / "many"))
    count = len(files) - 1
    assert files == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] + [
        "model.safetensors.index.json"
    ]
    index = json.loads((tmp_path / "many" / files[-1]).read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * t.itemsize for t in state.values())
    assert set(index["weight_map"]) == set(state)


def test_tied_names_survive(tmp_path: Path) -> None:
    checkpoint = StateDictCheckpoint({"a": torch.ones(3), "b": torch.ones(3)}, tied={"b": "a"})
    folder = save_checkpoint(checkpoint, tmp_path / "out")
    assert dict(open_checkpoint(folder).tied) == {"b": "a"}


def test_non_contiguous_tensors(tmp_path: Path) -> None:
    state = {"t": torch.arange(12.0).reshape(3, 4).t(), "e": torch.ones(3).expand(2, 3)}
    assert_equal(open_checkpoint(save_checkpoint(StateDictCheckpoint(state), tmp_path / "o")), state)


def test_existing_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "a folder with files in it" in refusal(Keyed(small_state()), tmp_path / "out")
    assert contents(tmp_path / "out") == {"notes.txt": b"mine"}
    (tmp_path / "file").write_text("mine")
    assert "a file" in refusal(Keyed(small_state()), tmp_path / "file")
    (tmp_path / "empty").mkdir()
    save_checkpoint(Keyed(small_state()), tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "out"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_parent(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "cannot be written" in refusal(Keyed(small_state()), tmp_path / "closed" / "out")


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(Keyed(small_state()), tmp_path / "file" / "out")


@pytest.mark.parametrize(("key", "kept"), [("state", True), (None, False)])
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, kept: bool) -> None:
    calls, pwrite = [0], os.pwrite

    def full(descriptor: int, raw: object, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, raw, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwrite", full)
    message = refusal(Keyed(small_state(), key=key), tmp_path / "out", shard_bytes=150, loop=Loop(threads=1))
    assert "No space left on device" in message
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("*.part"))
    assert bool(list(tmp_path.rglob("*.safetensors"))) == kept
    monkeypatch.undo()
    state = small_state()
    assert_equal(open_checkpoint(save_checkpoint(Keyed(state, key=key), tmp_path / "out", shard_bytes=150)), state)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_too_little_space_is_seen_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    checkpoint = Keyed(small_state())
    assert "GB are free" in refusal(checkpoint, tmp_path / "out")
    assert not checkpoint.reads
    assert not list(tmp_path.iterdir())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_interrupted_anywhere_and_resumed_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("resume")
    state = small_state()
    shard_bytes = data.draw(st.integers(1, 600))
    victim = data.draw(st.sampled_from([name for name in state if name != "empty"]))
    whole = save_checkpoint(Keyed(state), root / "whole", shard_bytes=shard_bytes)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(Keyed(state, victim), root / "out", shard_bytes=shard_bytes, loop=Loop(threads=1))
    assert not (root / "out").exists()
    finished = {path.name for path in root.rglob(".out*/*.safetensors")}
    again = Keyed(state)
    folder = save_checkpoint(again, root / "out", shard_bytes=shard_bytes)
    assert contents(folder) == contents(whole)
    names = {name for file in finished for name in open_checkpoint_alone(folder / file)}
    assert not names & set(again.reads)
    assert sorted(path.name for path in root.iterdir()) == ["out", "whole"]


def open_checkpoint_alone(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def test_other_weights_for_the_same_target_do_not_resume(tmp_path: Path) -> None:
    first, second = small_state(0), small_state(1)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(Keyed(first, "steps", "first"), tmp_path / "out", shard_bytes=100, loop=Loop(threads=1))
    assert_equal(open_checkpoint(save_checkpoint(Keyed(second, key="2"), tmp_path / "out", shard_bytes=100)), second)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@settings(max_examples=20, deadline=None)
@given(order=st.permutations([0, 1, 2]), shard_bytes=st.integers(1, 600))
def test_three_ranks_write_what_one_writes(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], shard_bytes: int
) -> None:
    root, state = tmp_path_factory.mktemp("ranks"), small_state()
    one = save_checkpoint(Keyed(state), root / "one", shard_bytes=shard_bytes)
    finished: list[Path] = []
    owners = set(range(min(3, len(list(one.glob("*.safetensors"))))))
    for count, rank in enumerate(order):
        assert (root / "three").exists() == (owners <= set(order[:count]))
        save_checkpoint(
            Keyed(state), root / "three", shard_bytes=shard_bytes, rank=rank, world=3, finish=finished.append
        )
    assert contents(one) == contents(root / "three")
    assert len(finished) == 1
    assert sorted(path.name for path in root.iterdir()) == ["one", "three"]


def test_ranks_need_a_merge_that_can_be_identified(tmp_path: Path) -> None:
    assert "world=1" in refusal(Keyed(small_state(), key=None), tmp_path / "out", world=2)


def test_finish_adds_files_before_the_folder_appears(tmp_path: Path) -> None:
    def finish(folder: Path) -> None:
        assert not (tmp_path / "out").exists()
        (folder / "config.json").write_text("{}")

    assert "config.json" in contents(save_checkpoint(Keyed(small_state()), tmp_path / "out", finish=finish))


def test_dtype_that_safetensors_lacks(tmp_path: Path) -> None:
    assert "complex128" in refusal(StateDictCheckpoint({"z": torch.zeros(2, dtype=torch.complex128)}), tmp_path / "o")


class Waiting(Keyed):
    """A state that says when two shards are written, and waits for a line before it goes on."""

    def __init__(self, state: dict[str, Tensor], target: Path) -> None:
        super().__init__(state)
        self.target, self.waited = target, False

    def pieces(self, name: str) -> Iterator[Tensor]:
        if not self.waited and len(list(self.target.parent.rglob("*.safetensors"))) >= 2:
            self.waited = True
            sys.stdout.write("waiting\n")
            sys.stdout.flush()
            sys.stdin.readline()
        return super().pieces(name)


_WAITING_SAVE = """
import sys
from pathlib import Path
from tests.merge.conftest import small_state
from tests.merge.test_sinks import Waiting
from fusion_eval.merge.loop import Loop
from fusion_eval.merge.sinks import save_checkpoint
target = Path(sys.argv[1])
save_checkpoint(Waiting(small_state(), target), target, shard_bytes=100, loop=Loop(threads=1))
"""


def waiting_save(target: Path, repo_root: Path) -> subprocess.Popen[str]:
    """A process in the middle of a save, which goes on when it is told a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", _WAITING_SAVE, str(target)], cwd=repo_root, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


def test_killed_and_started_again_is_as_if_never_killed(tmp_path: Path, repo_root: Path) -> None:
    state = small_state()
    process = waiting_save(tmp_path / "out", repo_root)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out").exists()
    again = Keyed(state)
    resumed = save_checkpoint(again, tmp_path / "out", shard_bytes=100)
    assert len(again.reads) < len(state) - 1
    whole = save_checkpoint(Keyed(state), tmp_path / "whole", shard_bytes=100)
    assert contents(resumed) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path, repo_root: Path) -> None:
    process = waiting_save(tmp_path / "out", repo_root)
    assert "another process is writing it" in refusal(Keyed(small_state()), tmp_path / "out", shard_bytes=100)
    assert "another process is writing it" in refusal(Keyed(small_state(1), key="x"), tmp_path / "out")
    assert process.communicate("go on\n")[1] == ""
    assert process.returncode == 0
    assert_equal(open_checkpoint(tmp_path / "out"), small_state())


def test_a_sink_that_is_closed_early_leaves_nothing(tmp_path: Path) -> None:
    from fusion_eval.merge.shards import plan_shards

    state = small_state()
    sink = ShardSink(tmp_path, plan_shards(StateDictCheckpoint(state), 10**9))
    sink.write("scale", state["scale"])
    sink.close()
    assert not list(tmp_path.iterdir())


_RANK = """
import sys
from tests.merge.conftest import small_state
from tests.merge.test_sinks import Keyed
from fusion_eval.merge.sinks import save_checkpoint
target, rank = sys.argv[1:]
sys.stdin.readline()
finish = lambda folder: print("finished", flush=True)
save_checkpoint(Keyed(small_state()), target, shard_bytes=60, rank=int(rank), world=3, finish=finish)
"""


@pytest.mark.dist
def test_ranks_at_the_same_time(tmp_path: Path, repo_root: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([sys.executable, "-c", _RANK, str(tmp_path / "out"), str(rank)], cwd=repo_root, **pipes)
        for rank in range(3)
    ]
    for process in ranks:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate() for process in ranks]
    assert [errors for _, errors in outputs] == ["", "", ""]
    assert "".join(text for text, _ in outputs) == "finished\n"
    one = save_checkpoint(Keyed(small_state()), tmp_path / "one", shard_bytes=60)
    assert contents(one) == contents(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out"]
