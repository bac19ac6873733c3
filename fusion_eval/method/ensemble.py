"""Ensembles: every expert runs, and their outputs are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.setting import Range, setting_faults
from fusion_eval.method.base_method import Method, Pool
from fusion_eval.method.step.base import choice_faults

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class EnsembleNetwork(nn.Module):
    """sum_t w_t f_t(x), or the largest f_t(x) of each entry.

    Args:
        models: the networks, which give tensors or outputs with `logits`.
        weights: one per model; None: the largest entry.
    """

    def __init__(self, models: Sequence[nn.Module], weights: Sequence[float] | None) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.weights = None if weights is None else list(weights)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The combined output: a tensor, or an output of the first model's kind with the combined `logits`."""
        outputs = [model(*args, **kwargs) for model in self.models]
        if isinstance(outputs[0], Tensor):
            return self.combined(outputs)
        return type(outputs[0])(logits=self.combined([output["logits"] for output in outputs]))

    def combined(self, outputs: Sequence[Tensor]) -> Tensor:
        """One tensor of several of one shape."""
        stacked = torch.stack(list(outputs))
        if self.weights is None:
            return stacked.amax(0)
        weights = torch.tensor(self.weights, dtype=stacked.dtype, device=stacked.device)
        total: Tensor = torch.tensordot(weights, stacked, 1)
        return total


class Ensemble(Method):
    """The outputs (logits, or features where heads are apart) of all experts, averaged or the largest. No paper.

    Args:
        combine: `mean`, or `max` of each entry.
        weights: one per expert in the pool's order, or by expert name; None: equal ones. They are divided by their sum.
    """

    def __init__(self, combine: str = "mean", weights: Sequence[float] | Mapping[str, float] | None = None) -> None:
        faults = choice_faults("method.combine", combine, ("mean", "max"))
        if weights is not None:
            faults += setting_faults("method.weights", weights, Range(0))
            values = weights.values() if isinstance(weights, Mapping) else weights
            if not faults and not sum(values) > 0:
                faults.append(Fault("method.weights", "sum to 0", "a positive sum"))
        if faults:
            raise ConfigError(*faults)
        self.combine, self.weights = combine, weights

    def apply(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> nn.Module:
        """The network, in evaluation mode; it holds every expert."""
        models = [pool.load(name) for name in pool.expert_names]
        return EnsembleNetwork(models, self._shares(pool) if self.combine == "mean" else None).eval()

    def faults(self, pool: Pool) -> list[Fault]:
        """Weights that are not one per expert."""
        found, experts = super().faults(pool), pool.expert_names
        if isinstance(self.weights, Mapping) and set(self.weights) != set(experts):
            found.append(Fault("method.weights", f"for {', '.join(self.weights)}", f"for {', '.join(experts)}"))
        elif isinstance(self.weights, Sequence) and len(self.weights) != len(experts):
            found.append(Fault("method.weights", f"{len(self.weights)} numbers", f"{len(experts)}, one per expert"))
        return found

    def _shares(self, pool: Pool) -> list[float]:
        names = pool.expert_names
        if self.weights is None:
            return [1 / len(names)] * len(names)
        values = [self.weights[name] for name in names] if isinstance(self.weights, Mapping) else list(self.weights)
        return [value / sum(values) for value in values]
