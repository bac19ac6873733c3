"""Steps that interpolate on the sphere: the tensor as one vector, or each of its rows."""

from __future__ import annotations

import torch
from torch import Tensor

_NEARLY_PARALLEL = 0.9995


def slerp(first: Tensor, second: Tensor, t: float, parallel: float = _NEARLY_PARALLEL) -> Tensor:
    """[sin((1-t) w) a + sin(t w) b] / sin w with w the angle of a and b; linear where |cos w| > `parallel`.

    Shoemake, Animating rotation with quaternion curves (SIGGRAPH 1985). The tensor is one vector, not normalised.
    """
    norms = torch.linalg.vector_norm(first).clamp(min=1e-8), torch.linalg.vector_norm(second).clamp(min=1e-8)
    cosine = ((first / norms[0]) * (second / norms[1])).sum().clamp(-1, 1)
    if cosine.abs() > parallel:
        return (1 - t) * first + t * second
    angle = torch.acos(cosine)
    return (torch.sin((1 - t) * angle) * first + torch.sin(t * angle) * second) / torch.sin(angle)
