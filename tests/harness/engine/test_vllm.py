from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fusion_eval.errors import ConfigError, EvaluationError, MissingDependencyError
from fusion_eval.harness.engine.transformers_model import TransformersModel
from fusion_eval.harness.engine.vllm import VllmModel
from fusion_eval.harness.request import Request
from fusion_eval.harness.scheduler import Scheduler
from tests.harness.engine import vllm_stub

PAIRS = [
    ("The cat", " sat"), ("The cat", " ran away"), ("", "Hello"), ("The dog ", "barks"), ("word " * 300, "and more"),
    ("a", " long tail" * 150),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", vllm_stub)
    vllm_stub.INSTANCES.clear()


@pytest.fixture(scope="module")
def folder(tiny_llama: Any, tokenizers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("llama")
    tiny_llama.save_pretrained(place)
    tokenizers["llama"].save_pretrained(place)
    return place


def requests() -> list[Request]:
    made = [Request("loglikelihood", {}, pair, 0, ("t", i, 1)) for i, pair in enumerate(PAIRS)]
    made += [Request("loglikelihood_rolling", {}, ("Some text to read. " * n,), 0, ("t", 10 + n, 1)) for n in (1, 90)]
    for i, until in enumerate((["e"], ["b", "ab c"], [])):
        made.append(Request("generate_until", {}, ("The", {"max_gen_toks": 8, "until": until}), 0, ("t", 20 + i, 1)))
    return made


def test_it_gives_what_transformers_gives(folder: Path, tiny_llama: Any, tokenizers: dict[str, Any]) -> None:
    expected, found = requests(), requests()
    model = VllmModel(str(folder))
    Scheduler(TransformersModel(tiny_llama, tokenizers["llama"], max_length=model.max_length)).answer(expected)
    Scheduler(model).answer(found)
    for mine, wanted in zip(found, expected, strict=True):
        if mine.request_type == "loglikelihood":
            assert mine.resps[0][0] == pytest.approx(wanted.resps[0][0], abs=1e-3)
            assert mine.resps[0][1] == wanted.resps[0][1]
        elif mine.request_type == "loglikelihood_rolling":
            assert float(mine.resps[0]) == pytest.approx(float(wanted.resps[0]), rel=1e-5)
        else:
            assert mine.resps == wanted.resps
        assert mine.marks == wanted.marks
    assert vllm_stub.INSTANCES[0].enable_prefix_caching


def test_the_length_that_vllm_was_given_counts(folder: Path) -> None:
    model = VllmModel(str(folder), max_model_len=64)
    assert model.max_length == 62
    with pytest.raises(EvaluationError, match="max_gen_toks: 62; expected less than 62"):
        model.encode_prompts([("x", {"max_gen_toks": 62}, 0)])


def test_settings_that_vllm_does_not_know_are_told(folder: Path) -> None:
    model = VllmModel(str(folder))
    (work,) = model.plan_prompts(model.encode_prompts([("x", {"num_beams": 3, "max_gen_toks": 4}, 0)]))
    with pytest.raises(ConfigError, match=r"num_beams is nothing that vLLM takes"):
        model.generate(work)


def test_values_that_vllm_refuses_are_told(folder: Path) -> None:
    model = VllmModel(str(folder))
    given = {"do_sample": True, "temperature": 3.0, "max_gen_toks": 4}
    (work,) = model.plan_prompts(model.encode_prompts([("x", given, 0)]))
    with pytest.raises(ConfigError, match=r"temperature must be in \[0, 2\], got 3.0"):
        model.generate(work)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match="pip install vllm"):
        VllmModel("somewhere")
