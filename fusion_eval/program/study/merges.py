"""Merges as the cells of a study: a method with a seed gives weights, and a pool's tasks say how good they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fusion_eval.build import build, build_option, option_node
from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.method.base_method import Method
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.task.predict import ArgmaxPredict


def merge_cell(seed: int, folder: Path, *, method: Any, modelpool: Any = "digits", **hyperparameters: Any) -> Path:
    """A merge with a seed, written into the cell's folder; returns where.

    Args:
        seed: of methods that draw random numbers.
        folder: the cell's.
        method: a name under `config/method`, or a node.
        modelpool: a name under `config/modelpool`, or a node.
        **hyperparameters: the named method's.

    Raises:
        ConfigError: a pool or a method that cannot be had, or that do not fit.
    """
    pool = pool_of(modelpool)
    rule = build_option("method", method, **hyperparameters) if isinstance(method, str) else build(method)
    if not isinstance(rule, Method):
        raise ConfigError(Fault("method", f"a {type(rule).__name__}", "a merging method"))
    if faults := pool.faults() or rule.faults(pool):
        raise ConfigError(*faults)
    merged = rule.apply(pool, None, seed=seed)
    if not isinstance(merged, Checkpoint):
        raise ConfigError(Fault("method", f"{type(rule).__name__} does not give weights of one model", "one that does"))
    pool.save(merged, folder / "merged")
    return folder / "merged"


def _depends_on(*, method: Any, modelpool: Any = "digits", **hyperparameters: Any) -> list[Any]:
    """What a merge is made of: the composed method and pool, and the pool's files."""
    rule = option_node("method", method, **hyperparameters) if isinstance(method, str) else method
    node = option_node("modelpool", modelpool) if isinstance(modelpool, str) else modelpool
    pool = pool_of(modelpool)
    opened = [pool.checkpoint(name) for name in pool.names]
    return [rule, node, [each.key() or each.fingerprint() for each in opened]]


merge_cell.depends_on = _depends_on  # type: ignore[attr-defined]


def merged_model(path: Path, *, modelpool: Any = "digits") -> nn.Module:
    """The model with the weights that a cell wrote."""
    return pool_of(modelpool).build(open_checkpoint(path))


def pool_of(modelpool: Any) -> BaseModelPool:
    """The pool of a name under `config/modelpool`, of a node, or the pool itself.

    Raises:
        ConfigError: there is none.
    """
    pool = build_option("modelpool", modelpool) if isinstance(modelpool, str) else build(modelpool)
    if not isinstance(pool, BaseModelPool):
        raise ConfigError(Fault("modelpool", f"a {type(pool).__name__}", "a model pool"))
    return pool


@dataclass(frozen=True, slots=True)
class HeadPredict:
    """Class indices and probabilities of a feature model under a task's own head.

    Args:
        task: the task whose head it is.
        modelpool: the pool that has it: a name under `config/modelpool`, or a node.

    Raises:
        ConfigError: the pool has no head of that name.
    """

    task: str
    modelpool: Any = "digits"
    head: nn.Module = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        head = pool_of(self.modelpool).head(self.task)
        if head is None:
            raise ConfigError(Fault("predict_fn.task", f"no head '{self.task}' in the pool", "one that it has"))
        object.__setattr__(self, "head", head.eval())

    def __call__(self, model: nn.Module, x: Any) -> tuple[Tensor, Tensor | None]:
        """(class indices, probabilities)."""
        return self.decode(self.forward(model, x))

    def forward(self, model: nn.Module, x: Any) -> Tensor:
        """The logits."""
        home = next((p.device for p in model.parameters()), None)
        logits: Tensor = self.head.to(home)(model(x)) if home is not None else self.head(model(x))
        return logits

    def decode(self, raw: Tensor, probs: bool = True) -> tuple[Tensor, Tensor | None]:
        """(class indices, probabilities in float32)."""
        return ArgmaxPredict().decode(raw, probs)
