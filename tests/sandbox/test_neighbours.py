"""What others do beside a sample costs it no verdict: their threads, their memory, their disk, their processors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fusion_eval.errors import SandboxError
from fusion_eval.sandbox import Limits, Program, Sandbox, Status, users
from fusion_eval.sandbox.jail import crowd
from fusion_eval.sandbox.level import Layers, shares_threads
from fusion_eval.sandbox.privilege import UIDS, may_change_user
from tests.sandbox.conftest import needs_landlock

needs_root = pytest.mark.skipif(not may_change_user(), reason="only root may become another user")
THIRTY = """
def f(x):
    import threading, time
    threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(30)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return x
"""
GREEDY = """
def f(x):
    import threading, time
    threading.stack_size(64 << 10)
    end = time.time() + 0.7
    while time.time() < end:
        try:
            threading.Thread(target=time.sleep, args=(0.7,)).start()
        except RuntimeError:
            time.sleep(0.01)
"""
COUNT = """
import sys, threading, time
sys.path.insert(0, {root!r})
import os
from fusion_eval.sandbox.jail.crowd import tasks_of_user
os.setresuid({uid}, {uid}, {uid})
before = tasks_of_user()
threading.stack_size(64 << 10)
for _ in range(50):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print(before, tasks_of_user(), flush=True)
os._exit(0)
"""


def asks(code: str, number: int = 0, **limits: float) -> Program:
    return Program(f"{code}# {number}\n", "assert f(1) == 1\n", ("f",), limits=Limits(**limits))


def test_no_two_servers_have_one_user() -> None:
    first, second = users.take(4), users.take(4)
    assert len({*first.numbers, *second.numbers}) == 8
    first.give_back()
    again = users.take(4)
    assert not set(again.numbers) & set(second.numbers)
    with pytest.raises(SandboxError, match="workers"):
        users.take(UIDS)
    for held in (again, second):
        held.give_back()


@needs_root
@needs_landlock
def test_another_sandbox_of_this_process_takes_no_threads(can_run: None) -> None:
    def greedy() -> None:
        with Sandbox(allow_code_execution=True, workers=1, bubblewrap=False) as box:
            box.run([asks(GREEDY, number) for number in range(2)])

    other = threading.Thread(target=greedy)
    with Sandbox(allow_code_execution=True, workers=1, bubblewrap=False) as box:
        box.run([asks(THIRTY)])
        other.start()
        verdicts = box.run([asks(THIRTY, number) for number in range(1, 20)])
    other.join()
    assert [verdict.detail for verdict in verdicts if not verdict.passed] == []


@needs_root
def test_the_kernel_says_how_many_tasks_a_user_has(repo_root: Path) -> None:
    user = users.take(1)
    code = COUNT.format(root=str(repo_root), uid=user.numbers[0])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    user.give_back()
    before, after = map(int, done.stdout.split())
    assert (before, after) == (pytest.approx(2, abs=1), pytest.approx(before + 50, abs=2))


def test_who_shares_the_count_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "6.1.0-18-amd64")
    assert shares_threads(Layers(False, 7, True, uid=False))
    assert not shares_threads(Layers(False, 7, True, uid=True))
    assert not shares_threads(Layers(True, 7, True, uid=False))
    monkeypatch.setattr("platform.release", lambda: "5.10.0-28-amd64")
    assert shares_threads(Layers(True, 7, True, uid=False))


def test_which_failures_are_tried_again() -> None:
    failed = {"status": "failed", "detail": "RuntimeError: can't start new thread"}
    fine, killed = {"signal": 0}, {"signal": 9}
    assert crowd.spoilt(failed, fine)
    assert crowd.spoilt({"status": "failed", "detail": "the process ended"}, fine, killed)
    assert crowd.spoilt({"status": "failed", "stderr": "bash: fork: retry: Resource temporarily unavailable"}, fine)
    assert not crowd.spoilt({"status": "failed", "detail": "AssertionError"}, fine)
    assert not crowd.spoilt({"status": "passed"}, killed)


def test_a_full_disk_is_told_from_a_full_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(tmp_path)
    assert not crowd.disk_is_full(str(tmp_path))
    fields = list(room)
    fields[4] = 0  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    assert crowd.disk_is_full(str(tmp_path))


def test_too_much_on_disk_fails_however_quickly_it_was_written(box: Sandbox) -> None:
    code = "def f(x):\n    open('a', 'wb').write(b'x' * (2 << 20))\n    return x\n"
    small, large = box.run([asks(code, disk=1 << 20), asks(code, disk=8 << 20)])
    assert (small.status, large.status) == (Status.FAILED, Status.PASSED)
    assert "to disk" in small.detail


def test_whoever_got_no_processor_is_not_scored(can_run: None) -> None:
    verdict = Sandbox(allow_code_execution=True)._verdict({"status": "timeout", "starved": True, "detail": "got 0.1 s"})
    assert (verdict.status, verdict.scored) == (Status.INFRASTRUCTURE, False)
    assert "no processor" in verdict.detail


@pytest.mark.slow
@needs_root
@needs_landlock
def test_tasks_of_the_same_user_in_another_container(plain_python: list[str], repo_root: Path, tmp_path: Path) -> None:
    """The kernel counts a user's threads over all containers; those outside are not to be seen from within one."""
    many = "import threading, time\nthreading.stack_size(65536)\nprint('up', flush=True)\n" + (
        "for _ in range(200): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    inside = (
        f"import sys\nsys.path.insert(0, {str(repo_root)!r})\nfrom fusion_eval.sandbox import Program, Sandbox\n"
        "with Sandbox(allow_code_execution=True, workers=1, bubblewrap=False) as box:\n"
        f"    print(box.run([Program({THIRTY!r}, 'assert f(1) == 1', ('f',))])[0].status.value)\n"
    )
    outside = subprocess.Popen([*plain_python, "-c", many], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert outside.stdout is not None
        outside.stdout.readline(), outside.stdout.readline()
        container = ["unshare", "--pid", "--fork", "--mount-proc", *plain_python, "-c", inside]
        done = subprocess.run(container, capture_output=True, text=True)
    finally:
        os.killpg(outside.pid, signal.SIGKILL)
        outside.communicate()
    if "unshare failed" in done.stderr:
        pytest.skip("no namespaces here")
    assert done.stdout.strip() == "passed", done.stderr
