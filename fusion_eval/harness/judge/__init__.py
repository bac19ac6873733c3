"""Language models that judge answers: one lazy interface over a server, a local model, recorded answers, or a dummy."""

from __future__ import annotations

from fusion_eval.harness.judge.active import current_judge, judged, judging
from fusion_eval.harness.judge.base import Judge, JudgeError, Messages
from fusion_eval.harness.judge.chosen import get_judge
from fusion_eval.harness.judge.settings import JudgeSettings

__all__ = ["Judge", "JudgeError", "JudgeSettings", "Messages", "current_judge", "get_judge", "judged", "judging"]
