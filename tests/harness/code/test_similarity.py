"""BLEU against values worked out by hand and sacrebleu; exact match; beyond@k."""

from __future__ import annotations

import math

import pytest

from fusion_eval.errors import DataError, EvaluationError
from fusion_eval.harness.code import evaluate_bleu, exact_match, sacrebleu_score
from fusion_eval.harness.code.efficiency import beyond, beyond_at_1

pytest.importorskip("sacrebleu")


def test_bleu_of_equal_texts_is_one() -> None:
    assert evaluate_bleu(["a b c d e"], [["a b c d e"]])["bleu"] == pytest.approx(1.0)


def test_bleu_by_hand() -> None:
    found = evaluate_bleu(["the the the cat"], [["the cat sat on the mat"]], max_order=2)
    # unigrams: the (clipped to 2) + cat = 3 of 4; bigrams: "the cat" = 1 of 3; brevity exp(1 - 6/4)
    assert found["precisions"] == pytest.approx([3 / 4, 1 / 3])
    assert found["bleu"] == pytest.approx(math.sqrt(3 / 4 / 3) * math.exp(1 - 6 / 4))


def test_smoothing_adds_one_to_matches_and_totals() -> None:
    found = evaluate_bleu(["a b"], [["a c"]], max_order=2, smooth=True)
    assert found["precisions"] == pytest.approx([2 / 3, 1 / 2])
    assert evaluate_bleu(["a b"], [["a c"]], max_order=2)["bleu"] == 0.0


def test_corpus_bleu_agrees_with_sacrebleu() -> None:
    texts = ["the quick brown fox jumps over the dog", "hello there , general kenobi of the order"]
    wanted = [["the quick brown fox jumped over the lazy dog"], ["hello there general kenobi of the old order"]]
    assert sacrebleu_score(texts, wanted) == pytest.approx(100 * float(evaluate_bleu(texts, wanted)["bleu"]), abs=1e-6)


def test_exact_match() -> None:
    assert exact_match([" a ", "b"], ["a", "c"]) == 0.5
    with pytest.raises(DataError):
        exact_match(["a"], [])


def test_beyond() -> None:
    assert beyond(1.0, [1.0, 3.0]) == 1.0
    assert beyond(2.0, [1.0, 3.0]) == 0.5
    assert beyond(9.0, [1.0, 3.0]) == 0.0
    assert beyond(None, [1.0]) == 0.0
    assert beyond_at_1([[1.0, None], [2.0]], [[1.0, 3.0], [1.0, 3.0]]) == pytest.approx(0.5)
    with pytest.raises(EvaluationError):
        beyond(1.0, [])
