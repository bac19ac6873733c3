"""The part of vLLM's interface that the engine uses, over a model of transformers; it refuses what vLLM refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch


@dataclass
class SamplingParams:
    """Fields of vllm.SamplingParams."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] | None = None
    max_tokens: int | None = 16
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.top_k, int) or self.top_k < -1:
            raise ValueError("top_k must be 0 (disable), or at least 1")
        if not 0.0 <= self.temperature <= 2.0:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature}.")
        if any(not stop for stop in self.stop or ()):
            raise ValueError("stop cannot contain an empty string.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}.")


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class LLM:
    """Loads a folder; `made` keeps every instance for the tests."""

    model: str
    enable_prefix_caching: bool = False
    max_model_len: int | None = None
    dtype: str = "auto"
    made: Any = field(default=None, repr=False)
    shut: bool = False

    def __post_init__(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        network: Any = AutoModelForCausalLM.from_pretrained(self.model)
        self.network = network.eval()
        limit = self.max_model_len or self.network.config.max_position_embeddings
        config = SimpleNamespace(hf_config=self.network.config, max_model_len=limit)
        core = SimpleNamespace(shutdown=lambda: setattr(self, "shut", True))
        self.llm_engine = SimpleNamespace(model_config=config, engine_core=core)
        INSTANCES.append(self)

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def generate(self, prompts: Sequence[Any], sampling_params: Any, *, use_tqdm: bool = True) -> list[SimpleNamespace]:
        many = isinstance(sampling_params, Sequence)
        chosen = sampling_params if many else [sampling_params] * len(prompts)
        assert len(chosen) == len(prompts)
        return [self._one(list(p["prompt_token_ids"]), own) for p, own in zip(prompts, chosen, strict=True)]

    def _one(self, tokens: list[int], own: SamplingParams) -> SimpleNamespace:
        if len(tokens) + 1 > self.llm_engine.model_config.max_model_len:
            raise ValueError("the prompt plus one output token is longer than max_model_len")
        with torch.inference_mode():
            logits = self.network(torch.tensor([tokens])).logits[0].log_softmax(-1)
        told = [None, *(self._row(row, t) for row, t in zip(logits, tokens[1:], strict=False))]
        text = self._write(tokens, own) if own.detokenize else ""
        return SimpleNamespace(
            prompt_logprobs=told if own.prompt_logprobs is not None else None, outputs=[SimpleNamespace(text=text)]
        )

    def _row(self, row: torch.Tensor, token: int) -> dict[int, Logprob]:
        best = int(row.argmax())
        rank = int((row > row[token]).sum()) + 1
        return {best: Logprob(float(row[best]), 1), token: Logprob(float(row[token]), rank)}

    def _write(self, tokens: list[int], own: SamplingParams) -> str:
        assert own.temperature == 0.0, "the stub is greedy"
        new: list[int] = []
        for _ in range(own.max_tokens or 0):
            with torch.inference_mode():
                new.append(int(self.network(torch.tensor([tokens + new])).logits[0, -1].argmax()))
            text = str(self.tokenizer.decode(new, skip_special_tokens=own.skip_special_tokens))
            places = [text.find(stop) for stop in own.stop or () if stop in text]
            if places:
                return text[: min(places)]
            if new[-1] == self.tokenizer.eos_token_id:
                return text
        return str(self.tokenizer.decode(new, skip_special_tokens=own.skip_special_tokens))


INSTANCES: list[LLM] = []
