"""Studies: methods with seeds, each trained or merged once, evaluated once, and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusion_eval.lazy import public_name

if TYPE_CHECKING:
    from fusion_eval.program.study.merges import HeadPredict as HeadPredict
    from fusion_eval.program.study.merges import merge_cell as merge_cell
    from fusion_eval.program.study.merges import merged_model as merged_model
    from fusion_eval.program.study.program import StudyProgram as StudyProgram
    from fusion_eval.program.study.study import Study as Study
    from fusion_eval.program.study.study import StudyResult as StudyResult

_WHERE = {
    "Study": "study",
    "StudyResult": "study",
    "HeadPredict": "merges",
    "merge_cell": "merges",
    "merged_model": "merges",
    "StudyProgram": "program",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
