"""The hostile corpus: every verdict right, nothing outside touched, every server alive afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.sandbox.conftest import needs_bubblewrap, needs_landlock, run_corpus

pytestmark = pytest.mark.timeout(1600)  # seconds on a machine of its own, minutes on a slow and busy one

GROWTH_KIB = 64 << 10
# Without Landlock a plain user's samples may use more of the jail's own /tmp, which is memory, and see one address.
HELD_BY_LANDLOCK = (
    "out_write_tmp_x", "out_write_x_above", "out_write_tests_x_above", "out_rename_above", "out_replace_own_folder",
    "out_get_robust_list",
)  # fmt: skip

GREEDY = """
def sum_even(xs):
    import threading, time
    threading.stack_size(64 << 10)
    end = time.time() + 0.3
    while time.time() < end:
        try:
            threading.Thread(target=time.sleep, args=(0.3,)).start()
        except RuntimeError:
            time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def corpus(assets_dir: Path, can_run: None) -> Path:
    return assets_dir / "sandbox" / "hostile.json"


@pytest.fixture(scope="module")
def quick(corpus: Path) -> list[str]:
    """Names that need no budget to run out."""
    samples = json.loads(corpus.read_text(encoding="utf-8"))["samples"]
    slow = ("time_", "use_", "ok_sleeps", "ok_half", "ok_enormous", "ok_four", "exit_sigstop")
    return [sample["name"] for sample in samples if not sample["name"].startswith(slow)]


def check(found: dict[str, object]) -> None:
    wrong = {name: found["verdicts"][name] for name in found["wrong"]}
    assert not wrong
    assert found["alive"], "a plain sample after the corpus did not pass"
    assert not found["left"], "a server outlived its sandbox"
    assert not found["marker"], "a sample wrote outside its scratch folder"
    assert found["connections"] == 0
    assert found["grown_kib"] < GROWTH_KIB


@needs_bubblewrap
def test_whole_corpus_with_every_layer(corpus: Path) -> None:
    check(run_corpus([sys.executable], corpus))


@needs_landlock
def test_quick_corpus_without_bubblewrap(corpus: Path, quick: list[str]) -> None:
    check(run_corpus([sys.executable], corpus, "--no-bubblewrap", "--only", *quick))


@needs_bubblewrap
def test_quick_corpus_as_a_plain_user(corpus: Path, quick: list[str], plain_python: list[str]) -> None:
    check(run_corpus(plain_python, corpus, "--only", *quick))


@needs_landlock
def test_quick_corpus_as_a_plain_user_without_bubblewrap(
    corpus: Path, quick: list[str], plain_python: list[str]
) -> None:
    check(run_corpus(plain_python, corpus, "--no-bubblewrap", "--only", *quick))


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--no-bubblewrap",), ("--no-landlock",)])
@pytest.mark.parametrize("plain", [False, True])
def test_whole_corpus(options: tuple[str, ...], plain: bool, corpus: Path, request: pytest.FixtureRequest) -> None:
    python = request.getfixturevalue("plain_python") if plain else [sys.executable]
    found = run_corpus(python, corpus, *options)
    if plain and "--no-landlock" in options:
        found["wrong"] = [name for name in found["wrong"] if name not in HELD_BY_LANDLOCK]
    check(found)


@pytest.mark.slow
@needs_bubblewrap
def test_whole_corpus_on_a_machine_loaded_four_times_over(corpus: Path) -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    load = [subprocess.Popen(spin) for _ in range(4 * len(os.sched_getaffinity(0)))]
    try:
        check(run_corpus([sys.executable], corpus))
    finally:
        for process in load:
            process.kill()
            process.wait()


@needs_landlock
def test_a_neighbour_that_takes_every_thread_costs_no_verdict(corpus: Path, plain_python: list[str]) -> None:
    whole = json.loads(corpus.read_text(encoding="utf-8"))
    code = {sample["name"]: sample["code"] for sample in whole["samples"]}
    greedy = [{"name": f"greedy_{i}", "code": f"{GREEDY}# {i}", "expected": "fail"} for i in range(6)]
    thirty = code["ok_thirty_threads"]
    modest = [{"name": f"modest_{i}", "code": f"{thirty}# {i}", "expected": "pass"} for i in range(6)]
    plain = {"name": "ok_plain", "code": code["ok_plain"], "expected": "pass"}
    pairs = [sample for pair in zip(greedy, modest, strict=True) for sample in pair]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        mixed = Path(folder) / "mixed.json"
        mixed.write_text(json.dumps({**whole, "samples": [*pairs, plain]}), encoding="utf-8")
        check(run_corpus(plain_python, mixed, "--no-bubblewrap"))
