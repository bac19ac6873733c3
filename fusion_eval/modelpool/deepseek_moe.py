"""A Llama whose feed-forward layers are DeepSeekMoE's (arXiv:2401.06066); transformers has no class of its own for it.

This file is copied beside the weights of such a mixture, where `from_pretrained(..., trust_remote_code=True)` finds it,
so it needs torch and transformers only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM


class DeepseekConfig(LlamaConfig):  # type: ignore[no-untyped-call]
    """A Llama's config with experts.

    Args:
        n_routed_experts: how many experts the router chooses from.
        n_shared_experts: how many experts see every token, or None.
        num_experts_per_tok: how many experts the router chooses.
        moe_intermediate_size: neurons of an expert.
        norm_topk_prob: whether the chosen experts' weights sum to 1.
        first_k_dense_replace: how many layers from the first on have no experts.
        moe_layer_freq: every which layer has experts.
        scoring_func: `softmax`.
    """

    model_type = "deepseek"

    def __init__(
        self,
        n_routed_experts: int | None = None,
        n_shared_experts: int | None = None,
        num_experts_per_tok: int = 2,
        moe_intermediate_size: int = 1407,
        norm_topk_prob: bool = False,
        first_k_dense_replace: int = 0,
        moe_layer_freq: int = 1,
        scoring_func: str = "softmax",
        **kwargs: Any,
    ) -> None:
        if scoring_func != "softmax":
            raise ValueError(f"scoring_func is {scoring_func!r}; expected 'softmax'")
        self.n_routed_experts, self.n_shared_experts = n_routed_experts, n_shared_experts
        self.num_experts_per_tok, self.moe_intermediate_size = num_experts_per_tok, moe_intermediate_size
        self.norm_topk_prob, self.first_k_dense_replace = norm_topk_prob, first_k_dense_replace
        self.moe_layer_freq, self.scoring_func = moe_layer_freq, scoring_func
        super().__init__(**kwargs)


class Expert(nn.Module):
    """down(silu(gate(x)) up(x))."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, hidden)."""
        found: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class DeepseekMoE(nn.Module):
    """sum of g_i expert_i(x) over the experts of the largest g = softmax(W x), plus the shared expert (eq. 9 to 11)."""

    def __init__(self, config: DeepseekConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        self.chosen, self.normalised = config.num_experts_per_tok, config.norm_topk_prob
        self.experts = nn.ModuleList(Expert(hidden, inner) for _ in range(config.n_routed_experts or 0))
        self.gate = nn.Linear(hidden, len(self.experts), bias=False)
        shared = config.n_shared_experts
        self.shared_experts = Expert(hidden, inner * shared) if shared else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(batch, tokens, hidden)."""
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        scores = self.gate(x).float().softmax(-1)
        weights, places = scores.topk(self.chosen, dim=-1)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        found = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, ranks = torch.where(places == index)
            found.index_add_(0, rows, expert(x[rows]) * weights[rows, ranks, None].to(x.dtype))
        if self.shared_experts is not None:
            found = found + self.shared_experts(x)
        return found.reshape(hidden_states.shape)


class DeepseekForCausalLM(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """A Llama with experts."""

    config_class = DeepseekConfig

    def __init__(self, config: DeepseekConfig) -> None:
        super().__init__(config)
        for number, layer in enumerate(self.model.layers):
            if number >= config.first_k_dense_replace and number % config.moe_layer_freq == 0:
                layer.mlp = DeepseekMoE(config)
        self.post_init()  # type: ignore[no-untyped-call]
