"""The vLLM backend: offline engine, prefix caching on, log-probabilities of prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_eval.errors import ConfigError, EvaluationError, Fault, MissingDependencyError
from fusion_eval.harness.engine.encoder import Encoder, model_length
from fusion_eval.harness.engine.generation import Settings, cut, safe_stops, thawed, without_thoughts
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work
from fusion_eval.harness.engine.text_model import TextModel

_UNIT = 512
_SPARE = 2  # one token before the first that is scored, and one that vLLM insists on writing


class VllmModel(TextModel):
    """A model folder served by vLLM inside this process.

    Args:
        path: folder or hub name.
        name: for reports; the path by default.
        encode: keywords of `Encoder` (`add_bos_token`, `prefix_token_id`, `max_length`, `compat`).
        think_end: text that ends the model's thoughts.
        chat_options: further keywords of the chat template.
        identity: tells weights apart in the store of answers; the path by default.
        options: keywords of `vllm.LLM`.

    Raises:
        MissingDependencyError: vLLM is not installed.
    """

    def __init__(
        self, path: str, *, name: str = "", encode: Mapping[str, Any] | None = None, think_end: str | None = None,
        chat_options: Mapping[str, Any] | None = None, identity: str = "", **options: Any,
    ) -> None:  # fmt: skip
        try:
            import vllm
        except ImportError as error:
            raise MissingDependencyError(
                Fault("the vLLM engine", "the package 'vllm' is not installed", do="Run: pip install vllm")
            ) from error
        self._vllm = vllm
        self._llm = vllm.LLM(model=path, **{"enable_prefix_caching": True, **options})
        tokenizer, config = self._llm.get_tokenizer(), self._llm.llm_engine.model_config
        given = dict(encode or {})
        limit = given.pop("max_length", None) or model_length(config.hf_config, tokenizer)
        self.max_length = min(limit, config.max_model_len - _SPARE)
        super().__init__(Encoder(tokenizer, self.max_length, **given), name or path, think_end, chat_options)
        digest = json.dumps([identity or path, self.encoder.key, str(options.get("dtype"))])
        self.fingerprint = hashlib.sha256(digest.encode()).hexdigest()[:32]

    def room(self, settings: Settings) -> int:
        """See `TextModel`."""
        return self.encoder.room(settings.max_tokens)

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """Units in the order of tokens.

        vLLM leaves its prefix cache unread for prompts whose log-probabilities are wanted (its SamplingParams say
        so), so shared prefixes save nothing here.
        """
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
        outputs = self.prompt_scores([{"prompt_token_ids": tokens} for tokens in inputs])
        return [
            score_of_tail(out.prompt_logprobs, tokens, piece)
            for out, tokens, piece in zip(outputs, inputs, pieces, strict=True)
        ]

    def prompt_scores(self, inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
        """What vLLM says about prompts, given the way it takes them."""
        settings = self._vllm.SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False)
        self.count(sum(len(given["prompt_token_ids"]) for given in inputs))
        return list(self._llm.generate(inputs, settings, use_tqdm=False))

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """Units in the order of tokens, so that vLLM's prefix cache is hit."""
        order = sorted(range(len(prompts)), key=lambda i: (prompts[i].tokens or (), i))
        parts = [order[start : start + _UNIT] for start in range(0, len(order), _UNIT)]
        return [Work(tuple(part), len(part), [prompts[i] for i in part]) for part in parts]

    def generate(self, work: Work) -> list[str]:
        """See `Generator`."""
        prompts: list[Prompt] = work.payload
        settings = [thawed(prompt.settings) for prompt in prompts]
        outputs = self.written(
            [{"prompt_token_ids": list(prompt.tokens or ())} for prompt in prompts], settings, prompts
        )
        texts = [without_thoughts(output.outputs[0].text, self.think_end) for output in outputs]
        return [cut(text, own.until) for text, own in zip(texts, settings, strict=True)]

    def written(
        self, inputs: Sequence[Mapping[str, Any]], settings: Sequence[Settings], prompts: Sequence[Prompt]
    ) -> list[Any]:
        """What vLLM writes after prompts, given the way it takes them."""
        parameters = [self._parameters(own, prompt) for own, prompt in zip(settings, prompts, strict=True)]
        return list(self._llm.generate(inputs, parameters, use_tqdm=False))

    def _parameters(self, settings: Settings, prompt: Prompt) -> Any:
        options: dict[str, Any] = {"temperature": 0.0, **settings.options, **settings.other}
        if "top_k" in options:
            options["top_k"] = int(options["top_k"])
        stops = safe_stops(settings.until) if self.think_end is None else []
        try:
            return self._vllm.SamplingParams(
                max_tokens=settings.max_tokens, stop=stops or None, seed=prompt.seed, **options
            )
        except TypeError as error:
            found = f"{', '.join(settings.other)} is nothing that vLLM takes ({error})"
            raise ConfigError(Fault("generation_kwargs", found, "keywords of vllm.SamplingParams")) from error
        except ValueError as error:
            found = f"vLLM refuses a value: {error}"
            raise ConfigError(Fault("generation_kwargs", found, "keywords of vllm.SamplingParams")) from error

    def close(self) -> None:
        """Give the memory of the device back; the model answers no more."""
        engine = getattr(self._llm.llm_engine, "engine_core", None)
        if engine is not None:
            engine.shutdown()
        self._llm = None


def score_of_tail(found: Any, tokens: list[int], piece: Pair) -> Score:
    """The score of a continuation at the end of a prompt of which vLLM gives the log-probabilities.

    Raises:
        EvaluationError: NaN.
    """
    count = min(len(piece.continuation), len(tokens) - 1)
    if not count:
        return Score(0.0, True, 0)
    own = range(len(tokens) - count, len(tokens))
    rows = [found[i] for i in own]
    values = [row[tokens[i]].logprob for i, row in zip(own, rows, strict=True)]
    if not all(value == value for value in values):
        raise EvaluationError(Fault("logits", "the model gives NaN", "numbers", "Look for NaN in the merged weights."))
    greedy = all(row[tokens[i]].rank == 1 for i, row in zip(own, rows, strict=True))
    return Score(float(sum(values)), greedy, count)
