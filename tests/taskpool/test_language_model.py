"""Engines of language models for task pools."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import AutoProcessor

from fusion_eval.errors import MissingDependencyError
from fusion_eval.taskpool.language_model import EngineMaker


def test_a_processor_that_wants_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanting(place: str) -> None:
        raise ImportError(f"{place} needs words:\n  pip install numbers_as_words")

    monkeypatch.setattr(AutoProcessor, "from_pretrained", wanting)
    maker = EngineMaker(tokenizer="folder")
    with pytest.raises(MissingDependencyError, match=r"processor of model 'm' in folder: .*pip install numbers_as"):
        maker.processor_of(nn.Linear(1, 1), "m", None)
