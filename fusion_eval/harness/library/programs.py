"""Scores of written programs; they run in the sandbox, and only where the user allowed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.harness.peer_metrics import code_eval

Document = Mapping[str, Any]


def humaneval(doc: Document, results: Sequence[str]) -> dict[str, float]:
    """Whether the prompt with the response passes the published tests."""
    return _passed(doc["prompt"] + results[0], f"{doc['test']}\ncheck({doc['entry_point']})")


def mbpp(doc: Document, results: Sequence[str]) -> dict[str, float]:
    """Whether the response passes the three assertions."""
    return _passed(f"{doc.get('test_setup_code') or ''}\n{results[0]}", "\n".join(doc["test_list"]))


def mbpp_plus(doc: Document, results: Sequence[str]) -> dict[str, float]:
    """Whether the response passes the extended tests."""
    return _passed("\n".join([*(doc.get("test_imports") or ()), results[0]]), doc["test"])


def _passed(program: str, tests: str) -> dict[str, float]:
    scores, _ = code_eval([[program]], [tests], k=[1])
    return {"pass_at_1": scores["pass@1"]}
