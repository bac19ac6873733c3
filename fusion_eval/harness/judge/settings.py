"""Settings of a judge, and the judge that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusion_eval.harness.judge.base import Judge, JudgeError, Messages


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """Which judge is asked; see `get_judge`."""

    kind: str = "none"


class _NoJudge(Judge):
    name = "none"

    def ask(self, messages: Messages, **options: Any) -> str:
        raise JudgeError("no judge is configured")


def get_judge(settings: Mapping[str, Any] | None = None) -> Judge:
    """The judge that settings describe; nothing is contacted before it is asked."""
    return _NoJudge()
