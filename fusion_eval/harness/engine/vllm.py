"""The vLLM backend: offline engine, prefix caching on, log-probabilities of prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fusion_eval.errors import missing_dependency
from fusion_eval.harness.engine.encoder import Encoder, model_length
from fusion_eval.harness.engine.generation import cut, frozen, normalise, thawed, without_thoughts
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work

_UNIT = 512


class VllmModel:
    """A model folder served by vLLM inside this process.

    Args:
        path: folder or hub name.
        compat: keep the peer's doubled BOS in whole texts.
        think_end: text that ends the model's thoughts.
        identity: tells weights apart in the store of answers; the path by default.
        options: keywords of `vllm.LLM`.
    """

    def __init__(
        self, path: str, *, compat: bool = False, think_end: str | None = None, identity: str = "", **options: Any
    ) -> None:
        try:
            import vllm
        except ImportError as error:
            raise missing_dependency("vllm", "language", "the vLLM backend (pip install vllm)") from error
        self._vllm = vllm
        self._llm = vllm.LLM(model=path, enable_prefix_caching=True, **options)
        self.tokenizer = self._llm.get_tokenizer()
        limit = model_length(self._llm.llm_engine.model_config.hf_config, self.tokenizer)
        self.max_length = min(limit, self._llm.llm_engine.model_config.max_model_len) - 1
        self.encoder = Encoder(self.tokenizer, self.max_length, compat=compat)
        self.name = path
        self.think_end = think_end
        self.work: dict[str, float] = {}
        digest = json.dumps([identity or path, self.encoder.key, str(options.get("dtype"))])
        self.fingerprint = hashlib.sha256(digest.encode()).hexdigest()[:32]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[list[Pair]]:
        """See `LikelihoodScorer`."""
        return self.encoder.pairs(pairs)

    def encode_texts(self, texts: Sequence[str]) -> list[list[Pair]]:
        """See `LikelihoodScorer`."""
        return self.encoder.texts(texts)

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """Units in the order of tokens, so that the engine's prefix cache is hit."""
        order = sorted(range(len(pieces)), key=lambda i: (pieces[i].context, pieces[i].continuation))
        parts = [order[start : start + _UNIT] for start in range(0, len(order), _UNIT)]
        return [
            Work(tuple(part), sum(len(pieces[i].context) for i in part), [pieces[i] for i in part]) for part in parts
        ]

    def score(self, work: Work) -> list[Score]:
        """See `LikelihoodScorer`."""
        pieces: list[Pair] = work.payload
        limit = self.max_length + 1
        inputs = [[*piece.context, *piece.continuation][-limit:] for piece in pieces]
        settings = self._vllm.SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": tokens} for tokens in inputs], settings, use_tqdm=False)
        self.work["tokens_forwarded"] = self.work.get("tokens_forwarded", 0) + sum(map(len, inputs))
        return [
            _score(out.prompt_logprobs, tokens, piece)
            for out, tokens, piece in zip(outputs, inputs, pieces, strict=True)
        ]

    def encode_prompts(self, prompts: Sequence[tuple[str, dict[str, Any], int]]) -> list[Prompt]:
        """See `Generator`."""
        rows = self.encoder.encode([text for text, _, _ in prompts])
        made = []
        for (text, given, seed), row in zip(prompts, rows, strict=True):
            settings = normalise(given)
            kept = row[-(self.max_length - settings.max_tokens) :]
            mark = "context truncated" if len(kept) < len(row) else ""
            made.append(Prompt(text, kept, frozen(settings), seed if settings.sampled else None, mark))
        return made

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """Units in the order of tokens."""
        order = sorted(range(len(prompts)), key=lambda i: (prompts[i].tokens or (), i))
        parts = [order[start : start + _UNIT] for start in range(0, len(order), _UNIT)]
        return [Work(tuple(part), len(part), [prompts[i] for i in part]) for part in parts]

    def generate(self, work: Work) -> list[str]:
        """See `Generator`."""
        prompts: list[Prompt] = work.payload
        parameters, stops = [], []
        for prompt in prompts:
            settings = thawed(prompt.settings)
            own = [stop for stop in settings.until if stop]
            options = {"temperature": 0.0, **settings.options, **settings.other}
            options["top_k"] = int(options.get("top_k", -1)) or -1
            given = None if self.think_end else own
            parameters.append(
                self._vllm.SamplingParams(max_tokens=settings.max_tokens, stop=given, seed=prompt.seed, **options)
            )
            stops.append(own)
        inputs = [{"prompt_token_ids": list(prompt.tokens or ())} for prompt in prompts]
        outputs = self._llm.generate(inputs, parameters, use_tqdm=False)
        texts = [without_thoughts(output.outputs[0].text, self.think_end) for output in outputs]
        return [cut(text, own) for text, own in zip(texts, stops, strict=True)]

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as one prompt."""
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )  # fmt: skip


def _score(found: Any, tokens: list[int], piece: Pair) -> Score:
    count = min(len(piece.continuation), len(tokens) - 1)
    if not count:
        return Score(0.0, True, 0)
    own = range(len(tokens) - count, len(tokens))
    rows = [found[i] for i in own]
    values = [row[tokens[i]].logprob for i, row in zip(own, rows, strict=True)]
    greedy = all(row[tokens[i]].rank == 1 for i, row in zip(own, rows, strict=True))
    return Score(float(sum(values)), greedy, count)
