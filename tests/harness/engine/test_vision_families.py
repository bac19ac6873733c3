"""Seven more families: each writes what its own generate writes, in any batch, with pictures computed apart."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.harness.engine.vision import VisionLanguageModel, VisionOptions
from tests.harness.engine.test_vision import inputs, scores, written
from tests.harness.engine.tiny_families import FAMILIES, family
from tests.harness.engine.tiny_vlm import questions

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_answers_as_its_own_model(name: str) -> None:
    model, processor = family(name)
    asked, expected = questions(10), []
    for conversation in asked:
        given = inputs(processor, conversation)
        with torch.inference_mode():
            out = model.generate(**given, max_new_tokens=10, do_sample=False)
        expected.append(processor.tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))
    engine = VisionLanguageModel(model, processor)
    assert written(engine, list(asked)) == expected
    assert engine.sight.way_of(0) == engine.sight.way_of(1) == "features"
    values = scores(engine, list(asked))
    one = VisionLanguageModel(model, processor, batch_size=1)
    assert scores(one, list(asked)) == values
    assert written(one, list(asked)) == expected
    whole = VisionLanguageModel(model, processor, options=VisionOptions(way="whole"))
    for mine, wanted in zip(values[:16], scores(whole, list(asked[:4])), strict=True):
        assert mine.value == pytest.approx(wanted.value, abs=1e-4)
