"""The simplest task pool: it counts parameters."""

from __future__ import annotations

from typing import Any

from torch import nn

from fusion_eval.taskpool.base_pool import BaseTaskPool
from fusion_eval.taskpool.classification import model_info


class DummyTaskPool(BaseTaskPool):
    """Evaluates nothing; useful to merge only, or to look at a model's size."""

    def evaluate(self, model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`model_info` alone."""
        return {"model_info": model_info(model), "average": {}}
