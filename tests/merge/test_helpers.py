from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fusion_eval.errors import Fault, MethodError
from fusion_eval.merge import loop
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.engine import AlignedPool, MergedCheckpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.group import ElementwiseRule
from fusion_eval.merge.helpers import Helper, Ledger, helpers, may_fork
from fusion_eval.merge.loop import Loop
from fusion_eval.merge.sinks import save_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")


def twice(item: int) -> int:
    if item < 0:
        raise MethodError(Fault("item", str(item), "a number", "Use another."))
    return 2 * item


def test_helpers_answer_in_other_processes_and_are_gone_at_the_end() -> None:
    with helpers(lambda item: (twice(item), os.getpid(), torch.get_num_threads()), 2) as made:
        found = [helper(21) for helper in made]
    assert [value for value, _, _ in found] == [42, 42]
    assert len({pid for _, pid, _ in found} | {os.getpid()}) == 3
    assert {threads for _, _, threads in found} == {1}
    for _, pid, _ in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_errors_are_raised_where_the_item_was_given_and_the_helper_goes_on() -> None:
    with helpers(twice, 1) as made:
        with pytest.raises(MethodError) as caught:
            made[0](-1)
        assert caught.value.faults == (Fault("item", "-1", "a number", "Use another."),)
        assert made[0](4) == 8


def test_an_error_that_cannot_be_pickled_comes_as_text() -> None:
    class LocalError(Exception):
        pass

    def fail(item: int) -> None:
        raise LocalError("inside")

    with helpers(fail, 1) as made, pytest.raises(RuntimeError, match="LocalError: inside"):
        made[0](1)


def test_a_killed_helper_is_an_error_that_says_so() -> None:
    killed = lambda item: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    with helpers(killed, 1) as made, pytest.raises(MethodError, match="was killed"):
        made[0](1)


def test_notes_come_home() -> None:
    ledger = Ledger()
    ledger["before"] = "kept"
    with helpers(lambda item: ledger.update({item: f"note of {item}"}), 2) as made:
        for helper, item in zip(made, "ab", strict=True):
            helper(item)
    assert ledger == {"before": "kept", "a": "note of a", "b": "note of b"}


def test_no_fork_beside_other_threads() -> None:
    import threading

    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not may_fork()
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes every merge fork; the processes made."""
    made: list[int] = []
    start = Helper.__init__

    def counted(self: Helper, *arguments: object) -> None:
        start(self, *arguments)  # type: ignore[arg-type]
        made.append(self._process)

    monkeypatch.setattr(loop, "_FORKED_BYTES", 0)
    monkeypatch.setattr(loop, "_BATCH_BYTES", 200_000)
    monkeypatch.setattr(loop, "may_fork", lambda: True)
    monkeypatch.setattr(Helper, "__init__", counted)
    return made


def pool(expert: dict[str, torch.Tensor] | None = None) -> AlignedPool:
    generator = torch.Generator().manual_seed(0)
    base = {f"{index}.weight": torch.randn(300, 100, generator=generator) for index in range(7)}
    base |= {"empty": torch.zeros(0), "count": torch.tensor(3)}
    other = {name: tensor + 1 for name, tensor in base.items()} | (expert or {})
    return AlignedPool(StateDictCheckpoint(base), {"one": StateDictCheckpoint(other)})


def mean(group):
    return torch.stack([group.base, *group.experts]).mean(0)


def test_processes_write_the_bytes_that_one_thread_writes(tmp_path: Path, forked: list[int]) -> None:
    merged = MergedCheckpoint(ElementwiseRule(mean), pool())
    save_checkpoint(merged, tmp_path / "one", shard_bytes=300_000, loop=Loop(threads=1))
    assert not forked
    merged = MergedCheckpoint(ElementwiseRule(mean), pool())
    save_checkpoint(merged, tmp_path / "two", shard_bytes=300_000, loop=Loop(threads=2))
    assert len(forked) == 2
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) > 3
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert "differ" in merged.notes["count"]


def test_a_fault_in_a_process_leaves_nothing_behind(tmp_path: Path, forked: list[int]) -> None:
    merged = MergedCheckpoint(mean, pool({"3.weight": torch.full((300, 100), float("nan"))}))
    with pytest.raises(MethodError, match="one has such values"):
        save_checkpoint(merged, tmp_path / "out", loop=Loop(threads=2))
    assert len(forked) == 2
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".part", ".safetensors")]
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], 0)


class Slow(StateDictCheckpoint):
    """Tensors of a thousand slow pieces, each noted in a file; the first tensor fails."""

    def __init__(self, state, notes):
        super().__init__(state)
        self.notes = notes

    def pieces(self, name):
        for piece in self.read(name).split(1000):
            if name == "0":
                raise MethodError(Fault(name, "bad"))
            time.sleep(0.05)
            with self.notes.open("a") as file:
                file.write(".")
            yield piece


def test_a_fault_stops_the_other_process_between_two_pieces(tmp_path: Path, forked: list[int]) -> None:
    notes = tmp_path / "notes"
    slow = Slow({f"{index}": torch.ones(1_000_000) for index in range(3)}, notes)
    with pytest.raises(MethodError, match="bad"):
        save_checkpoint(slow, tmp_path / "out", loop=Loop(threads=2))
    assert not notes.exists() or notes.stat().st_size < 1000
    assert len(forked) == 2
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".part", ".safetensors")]


_SLOW = """
import sys, time, torch
from fusion_eval.merge import loop
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.helpers import Helper
from fusion_eval.merge.sinks import save_checkpoint

class Slow(StateDictCheckpoint):
    def pieces(self, name):
        for piece in self.read(name).split(1):
            time.sleep(0.05)
            yield piece

loop._FORKED_BYTES = loop._BATCH_BYTES = 0
loop.may_fork = lambda: True
start = Helper.__init__
def told(self, *arguments):
    start(self, *arguments)
    print(self._process, flush=True)
Helper.__init__ = told
save_checkpoint(Slow({f"{i}": torch.ones(1000) for i in range(128)}), sys.argv[1], loop=loop.Loop(threads=2))
"""


def test_processes_end_when_their_parent_is_killed(tmp_path: Path, repo_root: Path) -> None:
    command = [sys.executable, "-c", _SLOW, str(tmp_path / "out")]
    with subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
    while any(map(running, children)):  # for an hour, if they do not end
        time.sleep(0.05)
    save_checkpoint(StateDictCheckpoint({"a": torch.ones(3)}), tmp_path / "out")
    assert torch.equal(open_checkpoint(tmp_path / "out")["a"], torch.ones(3))


_LARGE = """
import os, sys, time, torch
from safetensors.torch import save_file
from fusion_eval.merge.engine import AlignedPool, Loop, MergedCheckpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.merge.group import ElementwiseRule
from fusion_eval.merge.sinks import save_checkpoint

root = sys.argv[1]
for model in "ab":
    save_file({f"{index}.weight": torch.ones(4 << 20) for index in range(8)}, f"{root}/{model}.safetensors")
pool = AlignedPool(None, {model: open_checkpoint(f"{root}/{model}.safetensors") for model in "ab"})
def mean(group):
    merged = torch.stack(group.values()).mean(0)
    while not os.path.exists(f"{root}/seen"):  # both processes hold a slice until they have been looked at
        time.sleep(0.01)
    return merged

merged = MergedCheckpoint(ElementwiseRule(mean), pool)
print("ready", flush=True)
input()
save_checkpoint(merged, f"{root}/out", loop=Loop(threads=2))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="no forks beside a GPU")
@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs /proc with children")
def test_processes_share_their_memory_and_need_a_few_slices_more(tmp_path: Path, repo_root: Path) -> None:
    """A merge of 2 x 128 MiB; the pages that processes share are counted once."""
    command, pipe = [sys.executable, "-c", _LARGE, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, cwd=repo_root, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = anonymous(process.pid)[1]
        process.stdin.write("go\n")
        process.stdin.flush()
        found = []
        while process.poll() is None:
            found.append(anonymous(process.pid))
            if found[-1][0] == 3:
                (tmp_path / "seen").touch()
            time.sleep(0.002)
    assert process.returncode == 0
    assert max(count for count, _ in found) == 3
    assert max(peak for _, peak in found) - before < 128, "half of one model"


def anonymous(process: int) -> tuple[int, float]:
    """A process and its children: how many, and their anonymous memory in MiB."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        texts = [Path(f"/proc/{each}/smaps_rollup").read_text() for each in (process, *children)]
    except OSError:  # one has just ended
        return 0, 0.0
    lines = [line.split() for text in texts for line in text.splitlines() if line.startswith("Pss_Anon")]
    return len(texts), sum(int(line[1]) for line in lines) / 1024


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
