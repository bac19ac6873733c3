"""Text classification with a real tokenizer and a tiny BERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fusion_eval.errors import DataError
from fusion_eval.taskpool import TextClassificationTaskPool

transformers = pytest.importorskip("transformers")

TEXTS = ["a good film", "bad", "no film at all", "good good good", "a film", "so bad a film"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    from tests.tiny import tiny_bert

    folder: Path = tmp_path_factory.mktemp("bert")
    tiny_bert(folder, num_labels=2)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def expected(model: Any, tokenizer: Any, *columns: list[str]) -> torch.Tensor:
    preds = []
    with torch.no_grad():
        for texts in zip(*columns, strict=True):
            preds.append(model.eval()(**tokenizer(*texts, return_tensors="pt")).logits.argmax())
    return torch.stack(preds)


def test_texts_are_tokenised_in_padded_batches(bert: tuple[Any, Any]) -> None:
    model, tokenizer = bert
    rows = [{"idx": i, "sentence": text, "label": i % 2} for i, text in enumerate(TEXTS)]
    pool = TextClassificationTaskPool({"sst2": rows}, {"batch_size": 4}, tokenizer=tokenizer, progress=False)
    items = pool.results(model).tasks[0].items
    assert torch.equal(items["pred"], expected(model, tokenizer, TEXTS))
    assert items["target"].tolist() == [0, 1, 0, 1, 0, 1]


def test_pairs_of_texts_and_chosen_columns(bert: tuple[Any, Any]) -> None:
    model, tokenizer = bert
    rows = [{"premise": a, "hypothesis": b, "note": "-", "label": 0} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    pool = TextClassificationTaskPool({"mnli": rows}, tokenizer=tokenizer, progress=False)
    assert torch.equal(pool.results(model).tasks[0].items["pred"], expected(model, tokenizer, TEXTS, TEXTS[::-1]))
    one = TextClassificationTaskPool(
        {"mnli": rows}, tokenizer=tokenizer, text_keys={"mnli": ["hypothesis"]}, progress=False
    )
    assert torch.equal(one.results(model).tasks[0].items["pred"], expected(model, tokenizer, TEXTS[::-1]))


def test_rows_of_token_ids_are_padded(bert: tuple[Any, Any]) -> None:
    model, tokenizer = bert
    rows = [{"input_ids": tokenizer(text)["input_ids"], "labels": 1} for text in TEXTS]
    pool = TextClassificationTaskPool({"ids": rows}, {"batch_size": 6}, progress=False)
    assert torch.equal(pool.results(model).tasks[0].items["pred"], expected(model, tokenizer, TEXTS))


def test_texts_without_a_tokenizer_and_columns_that_are_not_there(bert: tuple[Any, Any]) -> None:
    rows = [{"sentence": "a", "label": 0}]
    with pytest.raises(DataError, match=r"task 'a': rows with sentence, label and no tokenizer; expected input_ids"):
        TextClassificationTaskPool({"a": rows}).setup()
    with pytest.raises(DataError, match=r"taskpool.text_keys \(task 'a'\): text not among sentence, label"):
        TextClassificationTaskPool({"a": rows}, tokenizer=bert[1], text_keys=["text"]).setup()
