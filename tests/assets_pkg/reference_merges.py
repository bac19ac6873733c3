"""Merges written from their papers' equations on flat vectors: references for the shipped experts only."""

from __future__ import annotations

import torch
from torch import Tensor

State = dict[str, Tensor]


def flatten(state: State) -> Tensor:
    return torch.cat([state[name].float().flatten() for name in sorted(state)])


def unflatten(vector: Tensor, like: State) -> State:
    names = sorted(like)
    parts = vector.split([like[name].numel() for name in names])
    return {name: part.view_as(like[name]) for name, part in zip(names, parts, strict=True)}


def task_vectors(base: State, experts: list[State]) -> Tensor:
    """Experts less base, (experts, weights)."""
    return torch.stack([flatten(expert) for expert in experts]) - flatten(base)


def ties_vector(vectors: Tensor, density: float) -> Tensor:
    """TIES: trim each vector to its largest weights, elect a sign by mass, mean of those that agree."""
    count = vectors.shape[1]
    kept = max(1, round(density * count))
    threshold = vectors.abs().kthvalue(count - kept + 1, dim=1, keepdim=True).values
    trimmed = vectors * (vectors.abs() >= threshold)
    agrees = (trimmed.sign() == trimmed.sum(0).sign()) & (trimmed != 0)
    return (trimmed * agrees).sum(0) / agrees.sum(0).clamp(min=1)


def ties_vector_per_tensor(vectors: Tensor, density: float, like: State) -> Tensor:
    """TIES with each tensor trimmed by itself."""
    parts = vectors.split([like[name].numel() for name in sorted(like)], dim=1)
    return torch.cat([ties_vector(part, density) for part in parts])


def dare_vectors(vectors: Tensor, density: float, seed: int) -> Tensor:
    """DARE: drop weights at random, rescale the rest by 1 / density."""
    kept = torch.rand(vectors.shape, generator=torch.Generator().manual_seed(seed)) < density
    return vectors * kept / density
