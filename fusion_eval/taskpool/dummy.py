"""The simplest task pool: it counts parameters."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from fusion_eval.taskpool.base_pool import BaseTaskPool
from fusion_eval.taskpool.typed_pool import model_info


class DummyTaskPool(BaseTaskPool):
    """Evaluates nothing; useful to merge only, or to look at a model's size."""

    counts_only: ClassVar[bool] = True

    def evaluate(self, model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`model_info` alone; of a checkpoint, every stored number counts."""
        if isinstance(model, nn.Module):
            return {"model_info": model_info(model), "average": {}}
        return {"model_info": {"all_params": sum(model.spec(name).numel for name in model)}, "average": {}}
