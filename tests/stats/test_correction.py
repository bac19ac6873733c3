from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import correct, correct_by_family, smallest_corrected

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@settings(deadline=None)
@given(P_VALUES, st.sampled_from(["holm", "bonferroni", "fdr_bh"]))
def test_statsmodels(p_values, name):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    expected = multitest.multipletests(p_values, method=name)[1]
    assert correct(p_values, name) == pytest.approx(expected, abs=1e-14)


@settings(deadline=None)
@given(P_VALUES)
def test_scipy_and_order(p_values):
    assert correct(p_values, "fdr_bh") == pytest.approx(stats.false_discovery_control(p_values), abs=1e-14)
    for name in ("holm", "bonferroni", "fdr_bh", "none"):
        corrected = correct(p_values, name)
        assert (corrected >= np.array(p_values) - 1e-15).all()
        assert (np.argsort(corrected, kind="stable")[0] in np.flatnonzero(corrected == corrected.min())) is True


def test_missing_tests_do_not_count():
    corrected = correct([0.01, float("nan"), 0.04], "holm")
    assert corrected[[0, 2]].tolist() == pytest.approx([0.02, 0.04])
    assert np.isnan(corrected[1])


def test_families_are_corrected_apart():
    assert correct_by_family([0.01, 0.02, 0.03], ["a", "b", "b"]).tolist() == pytest.approx([0.01, 0.04, 0.04])


def test_smallest_corrected():
    assert smallest_corrected(0.03125, 3, "holm") == pytest.approx(0.09375)
    assert smallest_corrected(0.03125, 3, "fdr_bh") == pytest.approx(0.03125)
    assert smallest_corrected(0.03125, 3, "bonferroni") == pytest.approx(0.09375)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(StatisticsError, match="Did you mean 'holm'"):
        correct([0.1], "hom")
