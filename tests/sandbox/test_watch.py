"""Budgets: CPU time counts, waiting and starving are told apart, streams are capped."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fusion_eval.sandbox.jail import watch as watch_module
from fusion_eval.sandbox.jail.watch import (
    Drain,
    Watch,
    folder_bytes,
    lost,
    out_of_time,
    output,
    result,
    share_to_be_had,
)
from fusion_eval.sandbox.jail.wire import frame


def watch(**fields: object) -> Watch:
    return Watch(**{"pids": [], "cpu": 1.0, "wall": 30.0, "disk": 0, "folder": "", **fields})  # type: ignore[arg-type]


def aged(seconds: float, **fields: object) -> Watch:
    found = watch(**fields)
    found.started = time.monotonic() - seconds
    return found


def test_nothing_is_over_at_first() -> None:
    assert watch().over() is None


def test_a_process_that_uses_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "share_to_be_had", lambda: 1.0)
    assert aged(2).over()["detail"].startswith("waited")


def test_whoever_finds_no_processor_is_starved_and_not_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for share, early, last in ((0.01, None, True), (0.5, False, False)):
        monkeypatch.setattr(watch_module, "share_to_be_had", lambda share=share: share)
        outcome = out_of_time(1.0, 30.0, 2.0, 0.0)
        assert (outcome and outcome.get("starved", False)) is early
        assert out_of_time(1.0, 30.0, 31.0, 0.9)["starved"] is last
    assert out_of_time(1.0, 30.0, 2.0, 0.0, patience=3.0) is None


def test_a_share_of_a_processor_is_found_by_asking() -> None:
    assert 0 < share_to_be_had() <= 1.05


def test_time_in_which_nothing_ran_does_not_count() -> None:
    assert (lost(0.1), lost(60.0)) == (0.0, 60.0)


def test_cpu_time_is_counted() -> None:
    me = os.getpid()
    assert aged(0, pids=[me], cpu=1e-6).over()["status"] == "timeout"
    assert watch(pids=[me]).used() > 0
    assert watch(pids=[2**22 - 1]).used() == 0


def test_the_scratch_folder_is_weighed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 100_000)
    assert folder_bytes(str(tmp_path), 1 << 30) >= 100_000
    assert "disk" in aged(0.5, disk=50_000, folder=str(tmp_path)).over()["detail"]


def test_results_must_be_verdicts() -> None:
    for body, status in (
        (frame({"status": "passed"}), "passed"),
        (frame([1]), "failed"),
        (b"\xff" * 8, "failed"),
        (b"", "failed"),
    ):
        read, write = os.pipe()
        os.write(write, body)
        os.close(write)
        assert result(watch(), read, 1000)["status"] == status
        os.close(read)


def test_streams_are_capped() -> None:
    read, write = os.pipe()
    os.write(write, b"x" * 5000)
    os.close(write)
    drain = Drain(read, 100)
    assert output(watch(), drain)["status"] == "passed"
    assert (len(drain.kept), drain.total) == (100, 5000)
    os.close(read)
