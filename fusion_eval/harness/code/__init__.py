"""Code-generation tasks: the task class, the registry, pass@k; programs run in `fusion_eval.sandbox` only."""

from __future__ import annotations

import importlib
from typing import Any

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
    if name in _WHERE:
        return getattr(importlib.import_module(f"fusion_eval.harness.code.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'fusion_eval.harness.code' has no attribute '{name}'")
