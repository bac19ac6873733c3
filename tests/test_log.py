"""Rank-zero logging, and how a process learns its rank."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from fusion_eval.log import get_rankzero_logger, rank


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 0),
        ({"RANK": "3", "LOCAL_RANK": "1"}, 3),
        ({"SLURM_PROCID": "2"}, 2),
        ({"LOCAL_RANK": "1"}, 1),
        ({"RANK": ""}, 0),
    ],
)
def test_rank_from_the_environment(variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rank() == expected


def test_the_process_group_knows_best(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setenv("RANK", "1")
    assert rank() == 5


def test_only_rank_zero_speaks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    log = get_rankzero_logger("tests.rank")
    assert get_rankzero_logger("tests.rank") is log
    assert len(log.filters) == 1
    with caplog.at_level(logging.INFO):
        log.info("from zero")
        monkeypatch.setenv("RANK", "1")
        log.error("from one")
    assert caplog.messages == ["from zero"]
