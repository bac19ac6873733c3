"""Models that see: what they answer is what the model's own forward and generate say, however it is batched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusion_eval.harness.engine.vision import VisionLanguageModel, VisionOptions
from fusion_eval.harness.media import Asked, Conversation
from tests.harness.engine.tiny_vlm import picture, questions, tiny_llava, tiny_qwen2_vl

MODELS = {"llava": tiny_llava, "qwen2_vl": tiny_qwen2_vl}
SETTINGS = {"max_new_tokens": 10, "do_sample": False}
CHOICES = ["red", "blue", " green and yellow", "A"]


def written(engine: VisionLanguageModel, asked: list[Asked], settings: dict[str, Any] | None = None) -> list[str]:
    prompts = engine.encode_prompts([(a, settings or SETTINGS, 3) for a in asked])
    distinct = list(dict.fromkeys(prompts))
    found = {}
    for work in engine.plan_prompts(distinct):
        found.update({distinct[i]: text for i, text in zip(work.positions, engine.generate(work), strict=True)})
    return [found[prompt] for prompt in prompts]


def scores(engine: VisionLanguageModel, asked: list[Asked], choices: list[str] | None = None) -> list[Any]:
    pieces = [row[0] for row in engine.encode_pairs([(a, c) for a in asked for c in choices or CHOICES])]
    distinct = list(dict.fromkeys(pieces))
    found = {}
    for work in engine.plan_scores(distinct):
        found.update({distinct[i]: score for i, score in zip(work.positions, engine.score(work), strict=True)})
    return [found[piece] for piece in pieces]


def inputs(processor: Any, conversation: Conversation, tail: str = "") -> Any:
    turns = [
        {"role": turn.role, "content": [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"}
                                        for p in turn.parts]}
        for turn in conversation.turns
    ]  # fmt: skip
    text = processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) + tail
    images = [medium.value for medium in conversation.media]
    return processor(text=[text], images=[images] if images else None, return_tensors="pt")


@pytest.mark.parametrize("name", MODELS)
def test_it_writes_what_the_models_own_generate_writes(name: str) -> None:
    model, processor = MODELS[name]()
    expected = []
    for conversation in questions():
        given = inputs(processor, conversation)
        with torch.inference_mode():
            out = model.generate(**given, max_new_tokens=10, do_sample=False)
        expected.append(processor.tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))
    assert len(set(expected)) > 4
    assert written(VisionLanguageModel(model, processor), questions()) == expected


@pytest.mark.parametrize("name", MODELS)
def test_it_scores_as_the_models_own_forward(name: str) -> None:
    model, processor = MODELS[name]()
    engine = VisionLanguageModel(model, processor)
    found = iter(scores(engine, questions(8)))
    for conversation in questions(8):
        for choice in CHOICES:
            given = inputs(processor, conversation, choice)
            count = given["input_ids"].shape[1] - inputs(processor, conversation)["input_ids"].shape[1]
            with torch.inference_mode():
                logits = model(**given).logits[0, -count - 1 : -1].double().log_softmax(-1)
            ids = given["input_ids"][0, -count:]
            score = next(found)
            assert score.tokens == count
            assert score.value == pytest.approx(float(logits.gather(1, ids[:, None]).sum()), abs=1e-4)
            assert score.greedy == bool((logits.argmax(-1) == ids).all())


@pytest.mark.parametrize("name", MODELS)
def test_neither_batch_size_nor_company_changes_a_bit(name: str) -> None:
    model, processor = MODELS[name]()
    asked: list[Asked] = list(questions())
    whole = VisionLanguageModel(model, processor, batch_size=16)
    texts, values = written(whole, asked), scores(whole, asked)
    for size in (1, 7):
        engine = VisionLanguageModel(model, processor, batch_size=size)
        assert scores(engine, asked) == values
        assert written(engine, asked) == texts
    for i, question in enumerate(asked):
        engine = VisionLanguageModel(model, processor)
        assert written(engine, [question]) == [texts[i]]
        assert scores(engine, [question]) == values[4 * i : 4 * i + 4]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["prefix", "whole"])
def test_pictures_computed_apart_change_nothing(name: str, way: Any) -> None:
    model, processor = MODELS[name]()
    apart = VisionLanguageModel(model, processor)
    other = VisionLanguageModel(model, processor, options=VisionOptions(way=way))
    asked: list[Asked] = list(questions(8))
    assert apart.sight.way_of(1) == apart.sight.way_of(2) == "features"
    assert written(apart, asked) == written(other, asked)
    for one, two in zip(scores(apart, asked), scores(other, asked), strict=True):
        assert one.value == pytest.approx(two.value, abs=1e-4)
    assert "images_encoded" not in other.work


def test_a_picture_is_encoded_once_for_all_questions_and_choices() -> None:
    model, processor = tiny_llava()
    engine = VisionLanguageModel(model, processor)
    asked: list[Asked] = [Conversation.ask([picture(1)], f"Question {i}?") for i in range(5)]
    written(engine, asked)
    scores(engine, asked)
    assert engine.work["images_encoded"] == 1
    small = VisionLanguageModel(model, processor, options=VisionOptions(kept_bytes=1))
    assert scores(small, asked) == scores(engine, asked)


def test_plain_text_and_conversations_go_together() -> None:
    model, processor = tiny_llava()
    engine = VisionLanguageModel(model, processor)
    mixed: list[Asked] = [x for i, q in enumerate(questions(6)) for x in (q, f"Plain text {i} red green")]
    expected = [
        written(VisionLanguageModel(model, processor), [a])[0] if isinstance(a, Conversation)
        else written_as_text(model, processor, a) for a in mixed
    ]  # fmt: skip
    assert written(engine, mixed, {"max_new_tokens": 10, "until": []}) == expected
    alone = [scores(VisionLanguageModel(model, processor), [a]) for a in mixed]
    for one, two in zip(scores(engine, mixed), [s for row in alone for s in row], strict=True):
        assert one.value == pytest.approx(two.value, abs=1e-4)
        assert one.tokens == two.tokens


def written_as_text(model: Any, processor: Any, text: str) -> str:
    given = processor.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(**given, max_new_tokens=10, do_sample=False)
    return str(processor.tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))
