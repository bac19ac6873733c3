"""What a comparison rests on: versions, code, data, models, metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fusion_eval.program.compare.plan import Plan
from fusion_eval.report.receipt import git_state, versions

_MOST_HASHED = 200_000_000


def circumstances(plan: Plan) -> dict[str, Any]:
    """The receipt of a comparison."""
    runs, loader, chosen = plan.runs, plan.loader, plan.measurement
    return {
        "versions": versions(),
        "git": git_state(Path.cwd()),
        "task": chosen.name,
        "metrics": {name: metric_text(metric) for name, metric in chosen.make().items()},
        "prob_metrics": sorted(chosen.task.prob_metrics),
        "predict_fn": callable_text(chosen.task.predict_fn),
        "data": {"items": loader.items, "batches": len(loader), "kind": _kind(loader)},
        "device": ", ".join(map(str, plan.places)) or "as the models",
        "processes": plan.ranks.world,
        "models": {
            name: [model_text(models[i]) for i in range(len(models))] if isinstance(models, list) else len(models)
            for name, models in runs.items()
        },
    }


def metric_text(metric: Any) -> str:
    """A metric's class and the arguments that are plain values."""
    hidden = (
        "sync_on_compute",
        "compute_on_cpu",
        "dist_sync_on_step",
        "compute_with_cache",
        "training",
        "validate_args",
    )
    kept = {
        key: value
        for key, value in sorted(vars(metric).items())
        if not key.startswith("_") and key not in hidden and isinstance(value, str | int | float | bool | None)
    }
    arguments = ", ".join(f"{key}={value!r}" for key, value in kept.items())
    return f"{type(metric).__module__}.{type(metric).__qualname__}({arguments})"


def callable_text(function: Any) -> str:
    """A function's dotted name, or an object's representation."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else repr(function)


def model_text(model: Any) -> str:
    """A model's class, size and weights' hash; a function that loads a model by its name."""
    if not isinstance(model, nn.Module):
        return f"loaded by {callable_text(model)}"
    count = sum(parameter.numel() for parameter in model.parameters())
    digest = state_hash(model.state_dict()) if count <= _MOST_HASHED else "not hashed"
    return f"{type(model).__name__}, {count} parameters, {digest}"


def state_hash(state: Mapping[str, Any]) -> str:
    """A hash of names, types, shapes and bytes of a state dict."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in state.items():
        if isinstance(value, Tensor):
            tensor = value.detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return f"blake2b:{digest.hexdigest()}"


def _kind(loader: Any) -> str:
    source = getattr(getattr(loader, "loader", None), "dataset", None) or getattr(loader, "batches", loader)
    return type(source).__name__
