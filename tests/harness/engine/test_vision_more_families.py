"""Ten further families: what each writes and how it scores is what its own generate and forward say, in any batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusion_eval.errors import FusionEvalError
from fusion_eval.harness.engine.vision import VisionLanguageModel
from fusion_eval.harness.media import Conversation
from tests.harness.engine.test_vision import CHOICES, inputs, scores, written
from tests.harness.engine.tiny_more_families import CHATTING, ONE_PICTURE, ready
from tests.harness.engine.tiny_vlm import picture, questions

WHOLE = {"mllama", *ONE_PICTURE}


def generated(model: Any, processor: Any, given: Any) -> str:
    with torch.inference_mode():
        out = model.generate(**given, max_new_tokens=10, do_sample=False)
    return str(processor.tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))


def likelihood(model: Any, given: Any, longer: Any) -> float:
    """Of what `longer` has after `given`, by a plain forward pass."""
    count = longer["input_ids"].shape[1] - given["input_ids"].shape[1]
    with torch.inference_mode():
        logits = model(**longer).logits[0, -count - 1 : -1].log_softmax(-1)
    return float(logits.gather(1, longer["input_ids"][0, -count:, None]).sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", CHATTING)
def test_a_family_answers_as_its_own_model(name: str) -> None:
    model, processor = ready(CHATTING[name])
    asked = questions(10)
    expected = [generated(model, processor, inputs(processor, conversation)) for conversation in asked]
    assert len(set(expected)) > 2
    engine = VisionLanguageModel(model, processor)
    assert written(engine, list(asked)) == expected
    values = scores(engine, list(asked))
    for size in (1, 4):
        other = VisionLanguageModel(model, processor, batch_size=size)
        assert written(other, list(asked)) == expected
        assert scores(other, list(asked)) == values
    for i, conversation in enumerate(asked[:4]):
        given = inputs(processor, conversation)
        for mine, choice in zip(values[4 * i : 4 * i + 4], CHOICES, strict=True):
            longer = inputs(processor, conversation, choice)
            assert mine.value == pytest.approx(likelihood(model, given, longer), abs=1e-4)
    assert engine.sight.way_of(1) == ("whole" if name in WHOLE else "prefix" if name == "idefics2" else "features")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", ONE_PICTURE)
def test_a_processor_that_places_the_picture_itself(name: str) -> None:
    model, processor = ready(ONE_PICTURE[name])
    asked = [Conversation.ask([picture(i)], text) for i, text in enumerate(["Which color?", "And which shape is it?"])]
    texts = [f"USER: {c.turns[0].text}\nASSISTANT:" for c in asked]
    expected = []
    for conversation, text in zip(asked, texts, strict=True):
        given = processor(text=text, images=conversation.media[0].value, return_tensors="pt")
        expected.append(generated(model, processor, given))
    assert len(set(expected)) == 2
    for size in (1, 4):
        assert written(VisionLanguageModel(model, processor, batch_size=size), list(asked)) == expected


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", ONE_PICTURE)
def test_choices_after_a_picture_that_the_processor_places(name: str) -> None:
    model, processor = ready(ONE_PICTURE[name])
    asked = Conversation.ask([picture(1)], "Which color?")
    text = "USER: Which color?\nASSISTANT:"
    given = dict(processor(text=text, images=asked.media[0].value, return_tensors="pt"))
    given.pop("labels", None)
    for mine, choice in zip(scores(VisionLanguageModel(model, processor), [asked]), CHOICES, strict=True):
        added = torch.tensor([processor.tokenizer(choice, add_special_tokens=False)["input_ids"]])
        longer = dict(given)
        for key, new in (
            ("input_ids", added), ("attention_mask", torch.ones_like(added)),
            ("token_type_ids", torch.ones_like(added)),
            ("image_embeds_position_mask", torch.zeros_like(added)),
        ):  # fmt: skip
            if key in given:
                longer[key] = torch.cat([given[key], new], 1)
        assert mine.value == pytest.approx(likelihood(model, given, longer), abs=1e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", ["paligemma", "blip2", "instructblip"])
def test_a_question_without_the_picture_that_a_model_needs(name: str) -> None:
    model, processor = ready(ONE_PICTURE[name])
    engine = VisionLanguageModel(model, processor)
    with pytest.raises(FusionEvalError, match="refuses a prompt with"):
        written(engine, [Conversation.ask([], "Which color?")])
    with pytest.raises(FusionEvalError, match="refuses a prompt with"):
        scores(engine, [Conversation.ask([], "Which color?")])
