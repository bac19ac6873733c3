"""The transformers backend: causal language models of the Auto class, in memory or from a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fusion_eval.harness.engine.causal import CausalScorer, ScorerOptions
from fusion_eval.harness.engine.decode import Decoder
from fusion_eval.harness.engine.encoder import Encoder, model_length
from fusion_eval.harness.engine.generation import Settings, thawed
from fusion_eval.harness.engine.linear import FastLinears
from fusion_eval.harness.engine.model_traits import require_causal
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Told, Work
from fusion_eval.harness.engine.text_model import TextModel
from fusion_eval.harness.engine.trie import common_length

_CLUSTER = 64
_GENERATE_TOKENS = {"cpu": 8192, "cuda": 65536}


class TransformersModel(TextModel):
    """A causal language model behind the engine protocol.

    Args:
        model: a Hugging Face model.
        tokenizer: its tokenizer.
        name: for reports.
        batch_size: prompts generated together; "auto" for a token budget.
        max_length: tokens that the model takes; None to ask its configuration.
        encoder: rules for token ids; None to build them. Share one between models with the same tokenizer.
        options: of the scorer.
        think_end: text that ends the model's thoughts.
        chat_options: further keywords of the chat template.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "model", batch_size: int | str = "auto",
        max_length: int | None = None, encoder: Encoder | None = None, options: ScorerOptions | None = None,
        think_end: str | None = None, chat_options: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.max_length = max_length or (encoder.max_length if encoder else model_length(model.config, tokenizer))
        super().__init__(encoder or Encoder(tokenizer, self.max_length), name, think_end, chat_options)
        self.model = model.eval()
        self.batch_size = batch_size
        self.scorer = CausalScorer(model, self.max_length, options or ScorerOptions(), self.work)
        self.decoder = Decoder(self.scorer, tokenizer, think_end)
        self._fast = FastLinears(model)
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of weights, configuration, tokenizer and precision."""
        if self._fingerprint is None:
            self._fingerprint = weights_digest(self.model, self.encoder.key)
        return self._fingerprint

    def room(self, settings: Settings) -> int:
        """See `TextModel`."""
        return self.encoder.room(settings.max_tokens)

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """See `LikelihoodScorer`."""
        return self.scorer.plan(pieces)

    def score(self, work: Work) -> list[Score]:
        """See `LikelihoodScorer`."""
        with self._fast():
            return self.scorer.score(work)

    def score_rest(self, work: Work, known: Mapping[int, Score], told: Told) -> list[Score]:
        """See `PartialScorer`."""
        with self._fast():
            return self.scorer.score(work, known, told)

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """Batches of prompts with equal settings; those that begin alike, and then those of one length, together."""
        groups: dict[Any, list[int]] = {}
        for position, prompt in enumerate(prompts):
            groups.setdefault(prompt.settings, []).append(position)
        works = []
        for settings, positions in groups.items():
            for batch in self._batches(prompts, _ordered(prompts, positions), thawed(settings).max_tokens):
                chosen = tuple(prompts[i] for i in batch)
                cost = sum(len(p.tokens or ()) for p in chosen) + len(chosen) * thawed(settings).max_tokens
                works.append(Work(tuple(batch), cost, chosen))
        return works

    def _batches(self, prompts: Sequence[Prompt], positions: list[int], new: int) -> Iterator[list[int]]:
        """Cuts of the ordered prompts, by number or by tokens."""
        kind = self.scorer.device.type if self.scorer.device.type in _GENERATE_TOKENS else "cuda"
        limit = self.batch_size if isinstance(self.batch_size, int) else None
        batch: list[int] = []
        width = 0
        for position in positions:
            width = max(width, len(prompts[position].tokens or ()) + new)
            full = len(batch) >= limit if limit else (len(batch) + 1) * width > _GENERATE_TOKENS[kind]
            if batch and full:
                yield batch
                batch, width = [], len(prompts[position].tokens or ()) + new
            batch.append(position)
        if batch:
            yield batch

    def generate(self, work: Work) -> list[str]:
        """See `Generator`."""
        prompts: Sequence[Prompt] = work.payload
        settings = thawed(prompts[0].settings)
        here = [i for i, prompt in enumerate(prompts) if self._decodes(prompt, settings)]
        found: dict[int, str] = {}
        with self._fast():
            if here:
                found.update(zip(here, self.decoder.run([prompts[i] for i in here], settings), strict=True))
            for equal in _of_one_length(prompts, [i for i in range(len(prompts)) if i not in found]):
                found.update(zip(equal, self._own_generate([prompts[i] for i in equal], settings), strict=True))
        return [found[i] for i in range(len(prompts))]

    def _decodes(self, prompt: Prompt, settings: Settings) -> bool:
        return not settings.other and self.decoder.takes(len(prompt.tokens or ()) + settings.max_tokens)

    def _own_generate(self, prompts: Sequence[Prompt], settings: Settings) -> list[str]:
        """The model's own `generate`: beams, penalties, and what cannot be continued from keys and values."""
        self.scorer.settle()
        tokens = torch.tensor([prompt.tokens for prompt in prompts], device=self.scorer.device)
        keywords = {**settings.other, **settings.options, "do_sample": settings.sampled}
        keywords.pop("max_length", None)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        with torch.inference_mode(), _seeded(prompts[0].seed):
            output = self.model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=settings.max_tokens, pad_token_id=pad,
                stop_strings=[s for s in settings.until if s] or None, tokenizer=self.tokenizer, **keywords,
            )  # fmt: skip
        self.scorer.runner.count(output.numel())
        return [self.decoder.finish(row[tokens.shape[1] :].tolist(), settings) for row in output]


def _ordered(prompts: Sequence[Prompt], positions: list[int]) -> list[int]:
    """Positions so that prompts with a common beginning are neighbours, the longest first among those."""
    tokens = {i: np.array(prompts[i].tokens, dtype=">u4") for i in positions}
    by_tokens = sorted(positions, key=lambda i: (tokens[i].tobytes(), prompts[i].seed or 0))
    clusters: list[list[int]] = []
    for i in by_tokens:
        if not clusters or common_length(tokens[clusters[-1][-1]], tokens[i]) < _CLUSTER:
            clusters.append([])
        clusters[-1].append(i)
    for cluster in clusters:
        cluster.sort(key=lambda i: -len(tokens[i]))
    clusters.sort(key=lambda cluster: -len(tokens[cluster[0]]))
    return [i for cluster in clusters for i in cluster]


def _of_one_length(prompts: Sequence[Prompt], positions: Sequence[int]) -> list[list[int]]:
    """Positions whose prompts need no padding beside each other; those that are drawn stay alone."""
    found: dict[Any, list[int]] = {}
    for i in positions:
        alone = i if prompts[i].seed is not None else -1
        found.setdefault((len(prompts[i].tokens or ()), alone), []).append(i)
    return list(found.values())


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def weights_digest(model: Any, salt: str = "") -> str:
    """A digest of a model's weights and configuration.

    Of each tensor it takes the sum of its bit patterns and their sum weighted by position, both exact integers, so that
    any changed number changes the digest.
    """
    digest = hashlib.sha256(f"{type(model).__name__} {salt}".encode())
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        ignored = ("_name_or_path", "transformers_version")
        digest.update(json.dumps({k: v for k, v in config.to_dict().items() if k not in ignored}, default=str,
                                 sort_keys=True).encode())  # fmt: skip
    with torch.inference_mode():
        for name, tensor in model.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {_sums(tensor)}".encode())
    return digest.hexdigest()[:32]


def _sums(tensor: torch.Tensor) -> tuple[int, int]:
    views = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().contiguous().flatten()
    if flat.dtype == torch.bool:
        flat = flat.to(torch.int8)
    elif flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    bits = flat.view(views[flat.element_size()]) if flat.numel() else flat.to(torch.int8)
    total = weighted = 0
    for start in range(0, bits.numel(), 1 << 24):
        part = bits[start : start + (1 << 24)].to(torch.int64)
        ramp = torch.arange(start + 1, start + 1 + part.numel(), device=part.device) % 65_521
        total += int(part.sum())
        weighted += int((part * ramp).sum())
    return total, weighted


def load_model(path: str, *, device: str | None = None, dtype: str = "auto", **options: Any) -> TransformersModel:
    """A model and its tokenizer from a local folder.

    Raises:
        ConfigError: the model does not score texts from left to right.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    engine = TransformersModel(model.to(device) if device else model, tokenizer, name=path, **options)
    require_causal(engine.model, path)
    return engine
