"""Vision-language models by vLLM: prompts with `multi_modal_data`, whose slots and caches are vLLM's own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from fusion_eval.harness.engine.generation import cut, thawed, without_thoughts
from fusion_eval.harness.engine.protocol import Pair, Prompt, Score, Work
from fusion_eval.harness.engine.vision_picture import MAX_PIXELS, rgb
from fusion_eval.harness.engine.vision_prompts import SeenPrompts
from fusion_eval.harness.engine.vision_render import Renderer
from fusion_eval.harness.engine.vllm import VllmModel, score_of_tail
from fusion_eval.harness.media import Media


class VisionVllmModel(SeenPrompts):
    """A vision-language model inside vLLM; plain text goes through the engine of text.

    Args:
        text: the model, opened.
        processor: its `AutoProcessor`, whose chat template writes the prompts.
        max_new_tokens: of an answer whose task does not say.
        max_pixels: of one picture; larger ones are refused.
    """

    text: VllmModel

    def __init__(
        self, text: VllmModel, processor: Any, max_new_tokens: int = 1024, max_pixels: int = MAX_PIXELS
    ) -> None:
        super().__init__(text, Renderer(processor, text.name, text.chat_options), max_new_tokens, max_pixels)
        self.name = text.name
        self.work = text.work
        self.fingerprint = hashlib.sha256(f"{text.fingerprint} {self.renderer.options}".encode()).hexdigest()[:32]

    def plan_scores(self, pieces: Sequence[Pair]) -> list[Work]:
        """See `VllmModel.plan_scores`; questions about the same pictures are neighbours."""
        return self.text.plan_scores(pieces)

    def plan_prompts(self, prompts: Sequence[Prompt]) -> list[Work]:
        """See `VllmModel.plan_prompts`."""
        return self.text.plan_prompts(prompts)

    def score(self, work: Work) -> list[Score]:
        """See `LikelihoodScorer`."""
        pieces: Sequence[Pair] = work.payload
        seeing = [i for i, piece in enumerate(pieces) if self._asks(piece.context, piece.media)]
        rest = [i for i in range(len(pieces)) if i not in set(seeing)]
        found: dict[int, Score] = {}
        if rest:
            texts = self.text.score(Work(tuple(rest), work.cost, [pieces[i] for i in rest]))
            found.update(zip(rest, texts, strict=True))
        full = [i for i in seeing if pieces[i].continuation]
        found.update({i: Score(0.0, True, 0) for i in seeing})
        inputs = [self._input((*pieces[i].context, *pieces[i].continuation), pieces[i].media) for i in full]
        for i, output in zip(full, self.text.prompt_scores(inputs) if inputs else (), strict=True):
            found[i] = score_of_tail(output.prompt_logprobs, list(output.prompt_token_ids), pieces[i])
        return [found[i] for i in range(len(pieces))]

    def generate(self, work: Work) -> list[str]:
        """See `Generator`."""
        prompts: Sequence[Prompt] = work.payload
        settings = [thawed(prompt.settings) for prompt in prompts]
        inputs = [self._input(prompt.tokens or (), prompt.media) for prompt in prompts]
        outputs = self.text.written(inputs, settings, prompts)
        texts = [without_thoughts(output.outputs[0].text, self.text.think_end) for output in outputs]
        return [cut(text, own.until) for text, own in zip(texts, settings, strict=True)]

    def _input(self, tokens: Sequence[Any], media: Sequence[str]) -> dict[str, Any]:
        """A prompt as vLLM takes it; it puts each picture's tokens in the place of its slot."""
        found: dict[str, list[Any]] = {}
        for digest in media:
            medium = self._media[digest]
            where = f"{medium.kind} {digest[:12]}"
            found.setdefault(medium.kind, []).append(_value(medium, where, self.max_pixels))
        given: dict[str, Any] = {"prompt_token_ids": list(tokens)}
        return {**given, "multi_modal_data": found} if found else given

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """See `VllmModel`."""
        return self.text.apply_chat_template(messages, add_generation_prompt)

    def close(self) -> None:
        """Give the memory of the device back."""
        self.text.close()


def _value(medium: Media, where: str, max_pixels: int) -> Any:
    if medium.kind == "image":
        return rgb(medium.value, where, max_pixels)
    if medium.kind == "audio":
        return medium.value["array"], medium.value["sampling_rate"]
    if isinstance(medium.value, str):
        return medium.value
    import numpy as np

    return np.stack([np.asarray(rgb(frame, where, max_pixels)) for frame in medium.value])
