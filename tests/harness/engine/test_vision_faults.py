"""What goes wrong with models that see says what and where, and what is odd but harmless works."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fusion_eval.errors import ConfigError, DataError, EvaluationError
from fusion_eval.harness.engine.vision import VisionLanguageModel, VisionOptions
from fusion_eval.harness.engine.vision_render import Renderer
from fusion_eval.harness.media import Conversation, Deferred, Media, Turn
from tests.harness.engine.test_vision import scores, written
from tests.harness.engine.tiny_vlm import picture, tiny_llava, tiny_qwen2_vl


@pytest.fixture
def engine() -> VisionLanguageModel:
    return VisionLanguageModel(*tiny_llava())


def shown(value: Any) -> Conversation:
    return Conversation.ask([Media("image", "d1", value)], "What?")


def test_pictures_that_are_none_are_errors(engine: VisionLanguageModel) -> None:
    with pytest.raises(DataError, match=r"image d1: no picture"):
        written(engine, [shown(None)])
    with pytest.raises(DataError, match="0 x 0 pixels"):
        engine.encode_prompts([(shown(Image.new("RGB", (0, 0))), {}, 0)])
    small = VisionLanguageModel(*tiny_llava(), options=VisionOptions(max_pixels=100))
    with pytest.raises(DataError, match="at most 100 pixels"):
        small.encode_pairs([(shown(Image.new("RGB", (20, 20))), "a")])


def test_converted_pictures_leave_a_mark(engine: VisionLanguageModel) -> None:
    prompt = engine.encode_prompts([(shown(Image.new("CMYK", (20, 20))), {}, 0)])[0]
    assert prompt.mark == "picture converted from CMYK to RGB"
    assert engine.encode_pairs([(shown(Image.new("RGB", (20, 20))), "a")])[0][0].mark == ""


def test_numbers_that_are_none_are_errors() -> None:
    model, processor = tiny_llava()
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.multi_modal_projector.linear_1.weight[0, 0] = float("nan")
    engine = VisionLanguageModel(broken, processor, options=VisionOptions(way="features"))
    for run in (written, scores):
        with pytest.raises(EvaluationError, match="NaN"):
            run(engine, [Conversation.ask([picture(1)], "What?")])


def test_prompts_that_are_too_long_are_errors_and_answers_end_at_the_limit(engine: VisionLanguageModel) -> None:
    many = Conversation.ask([picture(i) for i in range(60)], "What?")
    with pytest.raises(EvaluationError, match=r"takes \d+ tokens with 60 media; expected fewer than 256"):
        written(engine, [many])
    with pytest.raises(EvaluationError, match="60 media and a continuation"):
        scores(engine, [many])
    short = VisionLanguageModel(*tiny_llava(), max_length=40)
    assert written(short, [Conversation.ask([picture(2)], "What?")], {"max_new_tokens": 500})[0]
    assert short.work["tokens_forwarded"] == 39


def test_slots_in_the_text_take_the_pictures(engine: VisionLanguageModel) -> None:
    one, two = picture(1), picture(2)
    written_out = Conversation((Turn("user", (one, two, "First <image> then <image>. Same?")),))
    parts = Conversation((Turn("user", ("First ", one, " then ", two, ". Same?")),))
    assert engine.renderer.render(written_out) == engine.renderer.render(parts)
    assert written(engine, [written_out]) == written(engine, [parts])
    with pytest.raises(ConfigError, match=r"has 3 slots '<image>' for 1 media.*doc_to_text"):
        written(engine, [Conversation.ask([one], "Why a <image> here, and a <image> there?")])


def test_kinds_that_a_processor_does_not_take_are_errors(engine: VisionLanguageModel) -> None:
    for kind, value in (("video", [picture(1).value]), ("audio", {"array": np.zeros(9), "sampling_rate": 9})):
        asked = Conversation.ask([Media(kind, "d", value)], "What?")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"LlavaProcessor takes no {kind}"):
            engine.encode_prompts([(asked, {}, 0)])


def test_frames_go_through_the_processor_of_videos() -> None:
    model, processor = tiny_qwen2_vl()
    frames = [picture(i, 56, 56).value for i in range(4)]
    asked = Conversation.ask([Media("video", "v", frames)], "What happens?")
    engine = VisionLanguageModel(model, processor)
    text = engine.renderer.render(asked)
    given = processor(text=[text], videos=[frames], do_sample_frames=False, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(**given, max_new_tokens=8, do_sample=False)
    expected = processor.tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True)
    assert written(engine, [asked], {"max_new_tokens": 8}) == [expected]
    assert len(scores(engine, [asked], ["red"])) == 1


def test_without_a_template_prompts_are_plain() -> None:
    class Bare:
        image_token, chat_template, image_processor = "<image>", None, object()

    turns = (Turn("system", ("Be brief.",)), Turn("user", (picture(1), "What?")))
    renderer = Renderer(Bare(), "bare")
    assert renderer.render(Conversation(turns)) == "SYSTEM: Be brief.\nUSER: <image>\nWhat?\nASSISTANT:"
    said = (*turns, Turn("assistant", ("It is",)))
    assert renderer.render(Conversation(said)).endswith("What?\nASSISTANT: It is")


def test_beams_and_samples() -> None:
    engine = VisionLanguageModel(*tiny_llava())
    asked = [Conversation.ask([picture(i)], "What?") for i in range(3)]
    beams = written(engine, asked, {"max_new_tokens": 6, "num_beams": 3})
    assert beams == written(engine, asked, {"max_new_tokens": 6, "num_beams": 3})
    greedy = written(engine, asked, {"max_new_tokens": 6, "num_beams": 1, "image_aspect_ratio": "original"})
    assert greedy == written(engine, asked, {"max_new_tokens": 6})
    drawn = {"max_new_tokens": 6, "do_sample": True, "temperature": 1.5}
    assert written(engine, asked, drawn) == written(VisionLanguageModel(*tiny_llava(), batch_size=1), asked, drawn)
    assert written(engine, asked, drawn) != greedy


def test_pictures_that_are_made_when_wanted_are_made_once(engine: VisionLanguageModel) -> None:
    made = []

    def make() -> Any:
        made.append(1)
        return picture(3).value

    asked = [Conversation.ask([Media("image", "d", Deferred(make))], f"Question {i}?") for i in range(4)]
    prompts = engine.encode_prompts([(a, {}, 0) for a in asked])
    assert made == []
    assert len(prompts) == 4
    expected = written(engine, [Conversation.ask([picture(3)], f"Question {i}?") for i in range(4)])
    assert written(engine, asked) == expected
    assert made == [1]
