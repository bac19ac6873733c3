from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, matthews_corrcoef

from fusion_eval.errors import ConfigError, DataError
from fusion_eval.harness import aggregation as agg

PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40)


@given(PAIRS)
@pytest.mark.filterwarnings("ignore")
def test_matthews_equals_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    assert agg.matthews(pairs) == pytest.approx(matthews_corrcoef(*zip(*pairs, strict=True)), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
@pytest.mark.filterwarnings("ignore")
def test_f1_equals_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    golds, predictions = zip(*pairs, strict=True)
    assert agg.f1(pairs) == pytest.approx(f1_score(golds, predictions, zero_division=0), abs=1e-12)


def test_f1_of_other_labels_is_refused() -> None:
    with pytest.raises(DataError, match="has labels"):
        agg.f1([(2, 1)])


def test_closed_forms() -> None:
    assert agg.perplexity([-1.0, -3.0]) == pytest.approx(math.exp(2))
    assert agg.perplexity([(-2.0, 4), (-6.0, 4)]) == pytest.approx(math.e)
    assert agg.weighted_perplexity([(-2.0, 1), (-6.0, 3)]) == pytest.approx(math.exp(2))
    assert agg.bits_per_byte([(-math.log(2) * 8, 4), (0.0, 4)]) == pytest.approx(1)
    assert agg.median([3, 1, 2, 4]) == 3
    assert agg.nanmean([1.0, math.nan, 3.0]) == 2
    assert math.isnan(agg.nanmean([math.nan]))
    assert agg.perplexity([-1e6]) == math.inf
    assert agg.brier_score([(0, [0.8, 0.2]), (1, [0.5, 0.5])]) == pytest.approx((0.08 + 0.5) / 2)


def test_brier_scores_of_uneven_documents_are_refused() -> None:
    with pytest.raises(DataError, match="different numbers of choices"):
        agg.brier_score([(0, [0.5, 0.5]), (0, [0.2, 0.3, 0.5])])


def test_text_scores_are_sacrebleus() -> None:
    import sacrebleu

    single = [("the cat sat here", "the cat sat"), ("a dog ran", "a dog ran off")]
    expected = sacrebleu.corpus_bleu(["the cat sat", "a dog ran off"], [["the cat sat here", "a dog ran"]]).score
    assert agg.bleu(single) == pytest.approx(expected)
    assert agg.chrf([("a b", ["a b"])]) == pytest.approx(100)
    assert agg.ter([("a b", "a b")]) == 0


def test_unknown_names_are_told() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'median'"):
        agg.get_aggregation("mediann")
    assert agg.get_aggregation(np.mean) is np.mean
