"""SMILE: linear layers with low-rank experts and a router that needs no training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.setting import Range, setting_faults
from fusion_eval.merge.steps_spectral import svd
from fusion_eval.method.base_method import Method, Pool
from fusion_eval.method.pipeline import Flow
from fusion_eval.method.selection import Tensors
from fusion_eval.method.step import Sum

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class SmileLinear(nn.Module):
    """W_0 x + b_0 + sum_t g_t (U_t S_t V_t x + b_t - b_0), the weights g_t by how much of x lies in each V_t.

    g = softmax_t |V_t[:gate] x|, its `top_k` largest, renormalised.

    Args:
        linear: the base's layer.
        updates: each expert's change of the weight, (out, in).
        biases: each expert's change of the bias, or none.
        ranks: (gate, rank): directions that the router looks at, and that an expert keeps.
        top_k: experts that work on an input.
    """

    def __init__(
        self,
        linear: nn.Linear,
        updates: Sequence[Tensor],
        biases: Sequence[Tensor],
        ranks: tuple[int, int],
        top_k: int,
    ) -> None:
        super().__init__()
        gate, rank = ranks
        parts = [svd(update) for update in updates]
        self.linear, self.top_k = linear, top_k
        kind = linear.weight.dtype
        self.up = nn.Parameter(torch.stack([(p.U * p.S)[:, :rank] for p in parts]).to(kind), requires_grad=False)
        self.down = nn.Parameter(torch.stack([p.V[:rank] for p in parts]).to(kind), requires_grad=False)
        self.gate = nn.Parameter(torch.stack([p.V[:gate] for p in parts]).to(kind), requires_grad=False)
        self.bias = nn.Parameter(torch.stack(list(biases)).to(kind), requires_grad=False) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, (..., in) to (..., out)."""
        shares = self.shares(x)
        hidden = torch.einsum("...i,nri->...nr", x, self.down) * shares.unsqueeze(-1)
        out: Tensor = self.linear(x) + torch.einsum("...nr,nor->...o", hidden, self.up)
        return out if self.bias is None else out + shares @ self.bias

    def shares(self, x: Tensor) -> Tensor:
        """The weight of each expert on each input, (..., experts)."""
        logits = torch.einsum("...i,ngi->...ng", x, self.gate).norm(dim=-1)
        shares = functional.softmax(logits, dim=-1)
        kept, places = shares.topk(self.top_k, dim=-1)
        return torch.zeros_like(shares).scatter(-1, places, kept / kept.sum(-1, keepdim=True))


class SmileUpscaling(Method):
    """A network whose linear layers route each input to low-rank experts. SMILE, arXiv:2408.10174.

    SMILE: zero-shot sparse mixture of low-rank experts construction from pre-trained foundation models. Linear layers
    that are not selected, and all other tensors, follow the policy of `tensors`.

    Args:
        gate_k: directions of each expert that the router looks at.
        k: directions of each expert that are kept; None: all.
        top_k: experts that work on an input.
        tensors: which linear layers' weights are upscaled and what the other tensors become.
    """

    needs_base: ClassVar[bool] = True

    def __init__(
        self, gate_k: int = 1, k: int | None = 128, top_k: int = 1, tensors: Mapping[str, Any] | None = None
    ) -> None:
        faults = setting_faults("method.gate_k", gate_k, Range(1)) + setting_faults("method.top_k", top_k, Range(1))
        faults += [] if k is None else setting_faults("method.k", k, Range(1))
        try:
            self.tensors = Tensors.of(tensors)
        except ConfigError as error:
            faults += error.faults
        if faults:
            raise ConfigError(*faults)
        self.gate_k, self.k, self.top_k = gate_k, k, top_k

    def apply(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> nn.Module:
        """The network, on the CPU, in evaluation mode."""
        aligned = pool.aligned(seed)
        assert pool.base_name is not None
        network = pool.load(pool.base_name)
        layers = {
            name: layer
            for name, layer in network.named_modules()
            if type(layer) is nn.Linear and name and self._upscaled(aligned, f"{name}.weight")
        }
        self._fill(network, aligned, {f"{name}.{part}" for name in layers for part in ("weight", "bias")})
        for name, layer in layers.items():
            owner, _, attribute = name.rpartition(".")
            setattr(network.get_submodule(owner), attribute, self._smile(aligned, name, layer))
        return network.eval()

    def faults(self, pool: Pool) -> list[Fault]:
        """More experts asked for than there are."""
        found, count = super().faults(pool), len(pool.expert_names)
        if self.top_k > count:
            found.append(Fault("method.top_k", f"{self.top_k}", f"at most the pool's {count} experts"))
        return found

    def _upscaled(self, pool: AlignedPool, name: str) -> bool:
        return name in pool.reference and self.tensors.route(name) == "merge"

    def _smile(self, pool: AlignedPool, name: str, layer: nn.Linear) -> SmileLinear:
        updates = pool.group(f"{name}.weight").deltas()
        biases = () if layer.bias is None else pool.group(f"{name}.bias").deltas()
        ranks = self.gate_k, min(layer.weight.shape) if self.k is None else self.k
        return SmileLinear(layer, updates, biases, ranks, self.top_k)

    @torch.no_grad()
    def _fill(self, network: nn.Module, pool: AlignedPool, upscaled: set[str]) -> None:
        """Give the tensors outside of the upscaled layers what the policy says."""
        if self.tensors.others == "base":
            return
        flow = Flow((Sum(normalize=True),))
        for name, tensor in network.state_dict(keep_vars=True).items():
            if name in pool.reference and name not in upscaled and tensor.is_floating_point():
                tensor.copy_(flow(pool.group(name)))
