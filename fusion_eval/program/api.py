"""The programs for Python: merge models in memory or on disk, evaluate a model, compare models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fusion_eval.build import build_option, option_node
from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.method.base_method import Method
from fusion_eval.modelpool.base_pool import BaseModelPool
from fusion_eval.report.values import ModelResult
from fusion_eval.taskpool.base_pool import BaseTaskPool

if TYPE_CHECKING:
    from fusion_eval.merge.per_task import TaskCheckpoints
    from fusion_eval.modelpool.saving import MergeRecord
    from fusion_eval.program.compare.models import compare as compare

Model = nn.Module | Mapping[str, Tensor] | str | Path


def merge(
    experts: Mapping[str, Model] | Sequence[Model],
    base: Model | None = None,
    *,
    method: str | Method = "task_arithmetic",
    seed: int = 0,
    save: str | Path | None = None,
    **hyperparameters: Any,
) -> Any:
    """Merge models; none of them is changed.

    Args:
        experts: the models, by name or in order: modules, state dicts, or paths of checkpoints; all of one kind.
        base: the model that they were fine-tuned from, of the same kind, for the methods that need it.
        method: a method, or the name of one under `config/method`.
        seed: of methods that draw random numbers.
        save: a folder in which the merged weights are written, with a model card and the recipe.
        **hyperparameters: the named method's.

    Returns:
        A new module for modules; for state dicts and paths a `Checkpoint`: a mapping of names to tensors, each of which
        is merged when it is read. Methods that give something else (a model per task, an ensemble) return that.

    Raises:
        ConfigError: models of several kinds, an unknown method or hyperparameter, a method that lacks what it needs.
        AlignmentError: tensors that differ in name or shape.
    """
    named = dict(experts) if isinstance(experts, Mapping) else {str(i): model for i, model in enumerate(experts)}
    pool = _pool_of(named, base)
    if isinstance(method, Method) and hyperparameters:
        raise ConfigError(Fault("merge", f"both a method and {', '.join(hyperparameters)}", "one of them"))
    rule: Method = method if isinstance(method, Method) else build_option("method", method, **hyperparameters)
    node = None if isinstance(method, Method) else option_node("method", method, **hyperparameters)
    faults = pool.faults() or rule.faults(pool)  # a method looks at a pool that is sound
    if faults:
        raise ConfigError(*faults)
    merged = rule.apply(pool, None, seed=seed)
    if save is not None:
        if isinstance(merged, nn.Module):
            raise ConfigError(Fault("save", f"{type(rule).__name__} gives a network, not weights", "unset"))
        merged = _saved(merged, Path(save), pool, _record(rule, node, pool, seed))
    if isinstance(merged, Checkpoint) and isinstance(next(iter(named.values())), nn.Module):
        return pool.build(merged)
    return merged


def evaluate(model: nn.Module, taskpool: str | BaseTaskPool, *, name: str = "model", **changes: Any) -> ModelResult:
    """A model's results on a task pool, in evaluation mode on the pool's device.

    Args:
        model: the model.
        taskpool: a pool, or the name of one under `config/taskpool` or `./config/taskpool`.
        name: the model's name in the result.
        **changes: keywords of the named pool to replace.
    """
    pool = taskpool if isinstance(taskpool, BaseTaskPool) else build_option("taskpool", taskpool, **changes)
    found: ModelResult = pool.results(model, name)
    return found


def _saved(
    merged: Checkpoint | TaskCheckpoints, folder: Path, pool: BaseModelPool, record: MergeRecord
) -> Checkpoint | TaskCheckpoints:
    """The merge on disk, read from there."""
    from fusion_eval.merge.files import open_checkpoint

    if isinstance(merged, Checkpoint):
        pool.save(merged, folder, record=record)
        return open_checkpoint(folder)
    sources = {name: str(found["source"]) for name, found in record.inputs.items()}
    merged.save(folder, lambda partial: record.describe(partial, sources, "a model for each task"))
    return type(merged).load(folder, merged.base)


def _record(method: Method, node: Mapping[str, Any] | None, pool: BaseModelPool, seed: int) -> MergeRecord:
    """How a merge is made: models on disk are named, models in memory are known by their hashes only."""
    from fusion_eval.modelpool import CheckpointPool
    from fusion_eval.modelpool.saving import MergeRecord
    from fusion_eval.program.merge_recipe import method_node, own_recipe, plain

    opened = {name: pool.checkpoint(name) for name in pool.names}
    inputs = {name: {"source": each.source, "fingerprint": each.fingerprint()} for name, each in opened.items()}
    settings: dict[str, Any] = {"method": method_node(method) if node is None else node}
    if isinstance(pool, CheckpointPool):
        settings["modelpool"] = plain(pool.config)
    recipe = method.recipe(seed) or own_recipe(settings, seed, inputs)
    return MergeRecord(type(method).__name__, recipe, inputs)


def _pool_of(experts: Mapping[str, Model], base: Model | None) -> BaseModelPool:
    from fusion_eval.modelpool import CheckpointPool, ModulePool, StateDictPool

    models = list(experts.values()) + ([] if base is None else [base])
    if not experts:
        raise ConfigError(Fault("merge", "no experts", "at least one"))
    for kind, pool in (((nn.Module,), ModulePool), ((str, Path), CheckpointPool), ((Mapping,), StateDictPool)):
        if all(isinstance(model, kind) for model in models):
            made: BaseModelPool = pool(base, dict(experts))
            return made
    kinds = sorted({type(model).__name__ for model in models})
    raise ConfigError(Fault("merge", f"models of several kinds: {', '.join(kinds)}", "modules, state dicts or paths"))


def __getattr__(name: str) -> Any:
    if name == "compare":
        from fusion_eval.program.compare.models import compare

        return compare
    raise AttributeError(f"module 'fusion_eval.program.api' has no attribute '{name}'")
