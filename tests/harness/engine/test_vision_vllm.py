"""vLLM with pictures, over a stub that holds prompts to what vLLM takes and answers by transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusion_eval.harness.engine.vision import VisionLanguageModel
from fusion_eval.harness.engine.vision_vllm import VisionVllmModel
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler
from tests.harness.engine import vllm_stub
from tests.harness.engine.tiny_vlm import questions, tiny_llava


class SeeingLLM(vllm_stub.LLM):
    """The stub with pictures: slots in token ids, one for each picture of `multi_modal_data`."""

    def __post_init__(self) -> None:
        self.network, self.processor = tiny_llava()
        self.tokenizer = self.processor.tokenizer
        config = SimpleNamespace(hf_config=self.network.config, max_model_len=250)
        core = SimpleNamespace(shutdown=lambda: setattr(self, "shut", True))
        self.llm_engine = SimpleNamespace(model_config=config, engine_core=core)

    def generate(self, prompts: Sequence[Any], sampling_params: Any, *, use_tqdm: bool = True) -> list[SimpleNamespace]:
        many = isinstance(sampling_params, Sequence)
        chosen = sampling_params if many else [sampling_params] * len(prompts)
        return [self._answer(dict(p), own) for p, own in zip(prompts, chosen, strict=True)]

    def _answer(self, prompt: dict[str, Any], own: Any) -> SimpleNamespace:
        text = self.tokenizer.decode(prompt.pop("prompt_token_ids"))
        media = prompt.pop("multi_modal_data", {})
        assert not prompt
        assert set(media) <= {"image"}
        images = media.get("image", [])
        assert text.count("<image>") == len(images)
        assert all(image.mode == "RGB" for image in images)
        given = self.processor(text=[text], images=[images] if images else None, return_tensors="pt")
        tokens = given["input_ids"][0].tolist()
        with torch.inference_mode():
            logits = self.network(**given).logits[0].log_softmax(-1)
        told = [None, *(self._row(row, t) for row, t in zip(logits, tokens[1:], strict=False))]
        written = ""
        if own.detokenize:
            with torch.inference_mode():
                out = self.network.generate(**given, max_new_tokens=own.max_tokens, do_sample=False)
            written = self.tokenizer.decode(out[0, len(tokens) :], skip_special_tokens=True)
        return SimpleNamespace(
            prompt_token_ids=tokens, prompt_logprobs=told if own.prompt_logprobs is not None else None,
            outputs=[SimpleNamespace(text=written)],
        )  # fmt: skip


def requests() -> list[Request]:
    made = []
    for i, asked in enumerate(questions(8)):
        made.append(Request("generate_until", {}, (asked, {"max_new_tokens": 6}), 0, ("t", i, 1)))
        made += [Request("loglikelihood", {}, (asked, c), 0, ("c", i, 1)) for c in ("red", " blue and", "")]
    made.append(Request("loglikelihood", {}, ("Plain text", " red"), 0, ("p", 0, 1)))
    return made


def test_it_gives_what_transformers_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = SimpleNamespace(LLM=SeeingLLM, SamplingParams=vllm_stub.SamplingParams)
    monkeypatch.setitem(sys.modules, "vllm", stub)
    from fusion_eval.harness.engine.vllm import VllmModel

    model, processor = tiny_llava()
    engine = VisionVllmModel(VllmModel(str(tmp_path)), processor)
    expected, found = requests(), requests()
    Scheduler(VisionLanguageModel(model, processor)).answer(expected)
    Scheduler(engine).answer(found)
    for mine, wanted in zip(found, expected, strict=True):
        if mine.request_type == "generate_until":
            assert mine.resps == wanted.resps
        else:
            assert mine.resps[0][0] == pytest.approx(wanted.resps[0][0], abs=1e-3)
            assert mine.resps[0][1] == wanted.resps[0][1]
    engine.close()
