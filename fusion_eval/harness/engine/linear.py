"""Linear layers of a model in single precision on a CPU, multiplied by oneDNN in place of the default BLAS.

On processors for which the default library (MKL) has no fast kernels, oneDNN multiplies more than twice as fast, with
the same precision and with the weights where they lie.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

_LEAST_ROWS = 4
Forward = Callable[[torch.Tensor], torch.Tensor]


class FastLinears:
    """The linear layers of a model that may be replaced while it is asked.

    Args:
        model: a module; layers of other precisions, on other devices or of other classes stay as they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pairs: Sequence[tuple[nn.Module, Forward]] = _replacements(model) if available() else ()

    def __call__(self) -> AbstractContextManager[None]:
        """Inside, without gradients, the layers multiply with oneDNN."""
        return replaced(self._pairs)


@contextmanager
def replaced(pairs: Sequence[tuple[Any, Forward]]) -> Iterator[None]:
    """Inside, modules compute by other functions, unless something else has replaced them already."""
    changed = [(module, forward) for module, forward in pairs if "forward" not in module.__dict__]
    for module, forward in changed:
        module.forward = forward
    try:
        yield
    finally:
        for module, _ in changed:
            del module.forward


@functools.cache
def available() -> bool:
    """Whether this build of torch has the operator, and it multiplies as the default one does."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, weight, bias = torch.linspace(-1, 1, 24).view(1, 6, 4), torch.linspace(0, 2, 12).view(3, 4), torch.ones(3)
    try:
        found = _product(x, weight, bias)
    except (AttributeError, RuntimeError):
        return False
    return bool(torch.allclose(found, nn.functional.linear(x, weight, bias), atol=1e-5))


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def _replacements(model: nn.Module) -> list[tuple[nn.Module, Forward]]:
    found: list[tuple[nn.Module, Forward]] = []
    for module in model.modules():
        weight: Any = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dtype != torch.float32 or weight.device.type != "cpu":
            continue
        if type(module) is nn.Linear:
            found.append((module, functools.partial(_linear, module)))
        elif type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils":
            found.append((module, functools.partial(_transposed, module)))
    return found


def _linear(module: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    if not _suits(input):
        return nn.functional.linear(input, module.weight, module.bias)
    return _product(input.contiguous(), module.weight, module.bias)


def _transposed(module: Any, x: torch.Tensor) -> torch.Tensor:
    """The layer of GPT-2, whose weight is [inputs, outputs]."""
    weight = module.weight.t()
    return _product(x.contiguous(), weight, module.bias) if _suits(x) else nn.functional.linear(x, weight, module.bias)


def _suits(x: torch.Tensor) -> bool:
    return x.dtype == torch.float32 and not torch.is_grad_enabled() and x.numel() >= _LEAST_ROWS * x.shape[-1]
