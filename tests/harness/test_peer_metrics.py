from __future__ import annotations

import math

import pytest

from fusion_eval.errors import EvaluationError, MissingDependencyError
from fusion_eval.harness.peer_metrics import code_runner, load, pass_at


def test_bleu_of_equal_texts_is_one_and_short_texts_are_punished() -> None:
    bleu = load("bleu")
    assert bleu.compute(predictions=["a b c d e"], references=[["a b c d e"]])["bleu"] == pytest.approx(1)
    found = bleu.compute(predictions=["a b c d"], references=[["a b c d e f g h"]])
    assert found["bleu"] == pytest.approx(math.exp(1 - 2))


def test_rouge_accuracy_and_word_errors() -> None:
    assert load("rouge").compute(predictions=["a b"], references=["a b"])["rougeL"] == 1.0
    assert load("rouge").compute(predictions=["a b"], references=["a b"], use_aggregator=False)["rouge1"] == [1.0]
    assert load("accuracy").compute(predictions=[1, 2], references=[1, 3]) == {"accuracy": 0.5}
    assert load("wer").compute(predictions=["a x c"], references=["a b c d"]) == 0.5
    assert load("f1").compute(predictions=[1, 0], references=[1, 1])["f1"] == pytest.approx(2 / 3)


def test_code_runs_only_with_consent() -> None:
    with pytest.raises(EvaluationError, match="confirm_run_unsafe_code"):
        load("code_eval").compute(predictions=[["x = 1"]], references=["assert x == 1"], k=[1])
    with code_runner(lambda programs: ["assert True" in text for text in programs]):
        scores, rows = load("code_eval").compute(predictions=[["a", "b"]], references=["assert True"], k=[1, 2, 5])
    assert scores == {"pass@1": 1.0, "pass@2": 1.0}
    assert [detail["passed"] for _, detail in rows[0]] == [True, True]


def test_pass_at_k() -> None:
    assert pass_at(4, 1, 1) == pytest.approx(0.25)
    assert pass_at(4, 1, 2) == pytest.approx(0.5)
    assert pass_at(4, 3, 2) == 1.0


def test_other_names_need_the_package() -> None:
    try:
        import evaluate  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(MissingDependencyError, match="pip install evaluate"):
            load("bertscore")
