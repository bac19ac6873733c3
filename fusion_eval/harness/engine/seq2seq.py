"""Encoder-decoder models behind the engine protocol: each distinct context is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fusion_eval.harness.engine.causal import ScorerOptions
from fusion_eval.harness.engine.encoder import Encoder, model_length
from fusion_eval.harness.engine.generation import Settings, cut, thawed, without_thoughts
from fusion_eval.harness.engine.linear import FastLinears
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work
from fusion_eval.harness.engine.text_model import TextModel
from fusion_eval.harness.engine.transformers_model import weights_digest
from fusion_eval.harness.engine.tree import check_finite, out_of_memory

_BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}


class Seq2SeqModel(TextModel):
    """An encoder-decoder model; arguments as of `TransformersModel`."""

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "model", batch_size: int | str = "auto",
        max_length: int | None = None, encoder: Encoder | None = None, options: ScorerOptions | None = None,
        think_end: str | None = None, chat_options: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.max_length = max_length or (encoder.max_length if encoder else model_length(model.config, tokenizer))
        super().__init__(encoder or Encoder(tokenizer, self.max_length, causal=False), name, think_end, chat_options)
        self.model = model.eval()
        self._fast = FastLinears(model)
        self.device = next(model.parameters()).device
        budget = options.pass_tokens if options is not None else None
        self.batch_tokens = budget or _BATCH_TOKENS.get(self.device.type, _BATCH_TOKENS["cuda"])
        self.batch_size = batch_size if isinstance(batch_size, int) else None
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of weights, configuration, tokenizer and precision."""
        if self._fingerprint is None:
            self._fingerprint = weights_digest(self.model, self.encoder.key)
        return self._fingerprint

    def room(self, settings: Settings) -> int:
        """See `TextModel`: what is written takes no room from the prompt."""
        return self.max_length

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """Batches of contexts of similar length, each with all its continuations."""
        empty = tuple(i for i, piece in enumerate(pieces) if not piece.continuation)
        groups: dict[Any, list[int]] = {}
        for i, piece in enumerate(pieces):
            if piece.continuation:
                groups.setdefault(piece.context[-self.max_length :], []).append(i)
        works = [Work(empty, 0, None)] if empty else []
        batch: list[tuple[Any, list[int]]] = []
        for context, members in sorted(groups.items(), key=lambda item: (-len(item[0]), item[0])):
            width = len(batch[0][0]) if batch else len(context)
            rows = sum(len(own) for _, own in batch) + len(members)
            if batch and rows * width > self.batch_tokens:
                works.append(self._unit(batch, pieces))
                batch = []
            batch.append((context, members))
        return [*works, self._unit(batch, pieces)] if batch else works

    def _unit(self, batch: list[tuple[Any, list[int]]], pieces: Sequence[Pair]) -> Work:
        positions = tuple(i for _, members in batch for i in members)
        payload = [(context, [pieces[i].continuation for i in members]) for context, members in batch]
        return Work(positions, sum(len(context) for context, _ in batch), payload)

    def score(self, work: Work) -> list[Score]:
        """See `LikelihoodScorer`.

        Raises:
            EvaluationError: scores that are not numbers, or not enough memory for one context.
        """
        if work.payload is None:
            return [Score(0.0, True, 0) for _ in work.positions]
        with torch.inference_mode(), self._fast():
            return self._score(work.payload)

    def _score(self, batch: list[tuple[Any, list[Any]]]) -> list[Score]:
        try:
            logits, targets = self._forward(batch)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                raise out_of_memory(len(batch[0][0])) from error
            torch.cuda.empty_cache()
            return self._score(batch[: len(batch) // 2]) + self._score(batch[len(batch) // 2 :])
        scores = []
        for row, target in zip(logits, targets, strict=True):
            own = row[: len(target)].float()
            index = torch.tensor(target, device=own.device)
            picked = (own.gather(1, index[:, None])[:, 0] - own.logsumexp(-1)).double()
            check_finite(picked)
            scores.append(Score(float(picked.sum()), bool((own.argmax(-1) == index).all()), len(target)))
        return scores

    def _forward(self, batch: list[tuple[Any, list[Any]]]) -> tuple[torch.Tensor, list[Any]]:
        """Decoder logits [rows, length, vocabulary] and each row's targets."""
        inputs, mask = self._padded([context for context, _ in batch])
        encoded = self.model.get_encoder()(input_ids=inputs, attention_mask=mask, return_dict=True)
        counts = torch.tensor([len(own) for _, own in batch], device=self.device)
        encoded.last_hidden_state = encoded.last_hidden_state.repeat_interleave(counts, dim=0)
        targets = [target for _, own in batch for target in own]
        start = self.model.config.decoder_start_token_id
        decoder, _ = self._padded([(start, *target[:-1]) for target in targets])
        self.count(inputs.numel() + decoder.numel())
        output = self.model(
            encoder_outputs=encoded, attention_mask=mask.repeat_interleave(counts, dim=0), decoder_input_ids=decoder,
            use_cache=False,
        )  # fmt: skip
        return output.logits, targets

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, rows))
        tokens, mask = np.zeros((len(rows), width), dtype=np.int64), np.zeros((len(rows), width), dtype=np.int64)
        for i, row in enumerate(rows):
            tokens[i, : len(row)], mask[i, : len(row)] = row, 1
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(mask).to(self.device)

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """Batches of greedy prompts with equal settings and similar lengths; sampled ones run alone."""
        groups: dict[Any, list[int]] = {}
        for i, prompt in enumerate(prompts):
            groups.setdefault((prompt.settings, prompt.seed, i if prompt.seed is not None else -1), []).append(i)
        works = []
        for members in groups.values():
            members.sort(key=lambda i: (-len(prompts[i].tokens or ()), prompts[i].tokens))
            size = self.batch_size or max(1, self.batch_tokens // max(1, len(prompts[members[0]].tokens or ())))
            for start in range(0, len(members), size):
                own = members[start : start + size]
                works.append(Work(tuple(own), len(own), [prompts[i] for i in own]))
        return works

    def generate(self, work: Work) -> list[str]:
        """See `Generator`: the model's own `generate`, cut at the stop strings."""
        prompts: Sequence[Prompt] = work.payload
        settings = thawed(prompts[0].settings)
        inputs, mask = self._padded([prompt.tokens or () for prompt in prompts])
        keywords = {**settings.other, **settings.options, "do_sample": settings.sampled}
        keywords.pop("max_length", None)
        seeded = prompts[0].seed is not None
        with torch.inference_mode(), self._fast(), torch.random.fork_rng(enabled=seeded):
            if prompts[0].seed is not None:
                torch.manual_seed(prompts[0].seed)
            output = self.model.generate(
                input_ids=inputs, attention_mask=mask, max_new_tokens=settings.max_tokens, **keywords
            )
        self.count(inputs.numel() + output.numel())
        return [self._text(row.tolist(), settings) for row in output]

    def _text(self, tokens: list[int], settings: Settings) -> str:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        stops = [*settings.until, self.tokenizer.eos_token or ""]
        return cut(without_thoughts(text, self.think_end), stops)
