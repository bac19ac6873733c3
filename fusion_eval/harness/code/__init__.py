"""Code-generation tasks: the task class, the registry, pass@k; programs run in `fusion_eval.sandbox` only."""

from __future__ import annotations

from typing import Any

from fusion_eval.lazy import public_name

_WHERE = {
    "Task": "task",
    "ExecutionTask": "execution",
    "Reference": "execution",
    "Source": "source",
    "data_root": "source",
    "judging": "judge",
    "code_eval": "compatibility",
    "load_metric": "compatibility",
    "stand_ins": "compatibility",
    "native_tasks": "registry",
    "select": "registry",
    "tasks_in": "registry",
    "evaluate": "scoring",
    "check_references": "scoring",
    "require_references": "scoring",
    "CodeResult": "scoring",
    "pass_at_k": "passing",
    "evaluate_bleu": "similarity",
    "sacrebleu_score": "similarity",
    "exact_match": "similarity",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return public_name(__name__, _WHERE, name)
