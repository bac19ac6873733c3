from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusion_eval.harness.engine.protocol import LanguageModel, Score
from fusion_eval.taskpool.language_backend import backend_faults, opened
from fusion_eval.taskpool.language_model import EngineMaker
from tests.harness.engine import vllm_stub


@pytest.fixture
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", vllm_stub)
    vllm_stub.INSTANCES.clear()


@pytest.fixture
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "a", "b", "c"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    kind: Any = PreTrainedTokenizerFast
    return kind(tokenizer_object=raw, bos_token="<s>", eos_token="<s>", unk_token="a")


@pytest.fixture
def model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    made: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=4, n_positions=64, n_embd=16, n_layer=1, n_head=2))
    return made.eval()


@pytest.mark.usefixtures("_stub")
def test_a_model_at_hand_goes_through_a_folder_that_is_gone_afterwards(model: Any, tokenizer: Any) -> None:
    maker = EngineMaker(tokenizer, backend="vllm", backend_options={"max_model_len": 32})
    with opened(maker, model, "merged") as engine:
        (own,) = vllm_stub.INSTANCES
        place = Path(own.model)
        assert (engine.name, own.max_model_len, place.exists()) == ("merged", 32, True)
        first = engine.fingerprint
        served = _score(engine)
    assert (own.shut, place.exists()) == (True, False)
    with opened(EngineMaker(tokenizer), model, "merged") as engine:
        assert served == pytest.approx(_score(engine), abs=1e-5)
    with torch.no_grad():
        model.transformer.wte.weight.add_(0.1)
    with opened(maker, model, "merged") as engine:
        assert engine.fingerprint != first


def _score(engine: LanguageModel) -> list[float]:
    pieces = [piece for row in engine.encode_pairs([("a b", " c"), ("b", " a c")]) for piece in row]
    found: dict[int, Score] = {}
    for work in engine.plan_scores(pieces):
        found.update(zip(work.positions, engine.score(work), strict=True))
    return [found[i].value for i in range(2)]


def test_the_choice_is_checked_before_work_starts() -> None:
    (fault,) = backend_faults(EngineMaker(backend="vlm"))
    assert "Did you mean 'vllm'" in str(fault)
    assert "are for vllm" in str(backend_faults(EngineMaker(backend_options={"dtype": "half"}))[0])
    assert "and a server is named too" in str(backend_faults(EngineMaker(backend="vllm", server={"url": "x"}))[0])
    assert not backend_faults(EngineMaker())
    assert [f.where for f in backend_faults(EngineMaker(batch_size=0, pass_tokens=-1))] == [
        "taskpool.batch_size", "taskpool.pass_tokens",
    ]  # fmt: skip


@pytest.mark.usefixtures("_stub")
def test_an_installed_backend_is_no_fault() -> None:
    assert not backend_faults(EngineMaker(backend="vllm"))
