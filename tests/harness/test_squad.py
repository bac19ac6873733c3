from __future__ import annotations

import pytest

from fusion_eval.harness.squad import compute_exact, compute_f1, squad, squad_v2


def test_texts_are_normalised() -> None:
    assert compute_exact("The Cat!", "a cat") == 1
    assert compute_f1("big black cat", "black cat") == pytest.approx(0.8)
    assert compute_f1("", "") == 1.0
    assert compute_f1("a", "x") == 0.0


def test_both_versions() -> None:
    references = [{"id": "1", "answers": {"text": ["cat", "dog"]}}, {"id": "2", "answers": {"text": []}}]
    predictions = [
        {"id": "1", "prediction_text": "dog", "no_answer_probability": 0.1},
        {"id": "2", "prediction_text": "x", "no_answer_probability": 0.9},
    ]
    assert squad(predictions[:1], references[:1]) == {"exact_match": 100.0, "f1": 100.0}
    found = squad_v2(predictions, references)
    assert (found["exact"], found["HasAns_exact"], found["NoAns_exact"]) == (50.0, 100.0, 0.0)
    assert found["best_exact"] == 100.0
    assert 0.1 <= found["best_exact_thresh"] < 0.9
