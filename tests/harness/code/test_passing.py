"""pass@k: golden values, the definition by enumeration, what is not scored."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_eval.errors import EvaluationError
from fusion_eval.harness.code import pass_at_k
from fusion_eval.harness.code.passing import Counts, count, estimates, interval, tally
from fusion_eval.sandbox import Status, Verdict


@pytest.mark.parametrize(
    ("n", "correct", "k", "expected"),
    [(10, 3, 1, 0.3), (10, 3, 5, 0.916667), (20, 0, 10, 0.0), (5, 5, 5, 1.0), (1, 1, 1, 1.0), (10, 8, 5, 1.0)],
)
def test_golden_values(n: int, correct: int, k: int, expected: float) -> None:
    assert pass_at_k(n, correct, k) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_it_is_the_share_of_subsets_with_a_correct_sample(numbers: tuple[int, int, int]) -> None:
    n, correct, k = numbers
    subsets = list(itertools.combinations(range(n), k))
    share = sum(any(i < correct for i in subset) for subset in subsets) / len(subsets)
    assert pass_at_k(n, correct, k) == pytest.approx(share, abs=1e-12)


@given(st.integers(1, 300), st.data())
def test_it_lies_in_the_unit_interval_and_grows_with_k(n: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, n))
    values = [pass_at_k(n, correct, k) for k in range(1, n + 1)]
    assert values == sorted(values)
    assert 0 <= values[0] == pytest.approx(correct / n)
    assert values[-1] == (1.0 if correct else 0.0)


@pytest.mark.parametrize("numbers", [(1, 2, 1), (3, 1, 4), (3, -1, 1), (3, 1, 0)])
def test_senseless_counts(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(EvaluationError):
        pass_at_k(*numbers)


def test_a_k_is_reported_when_every_problem_has_enough() -> None:
    counts = [Counts(10, 3), Counts(12, 0)]
    assert estimates(counts, (1, 10, 100)) == {"pass@1": pytest.approx(0.15), "pass@10": pytest.approx(0.5)}


def test_a_problem_without_scored_samples_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="problems without a scored sample: 1"):
        estimates([Counts(1, 1), Counts(0, 0, 3)])
    with pytest.raises(EvaluationError, match="no problems"):
        estimates([])


def test_infrastructure_is_counted_and_not_scored() -> None:
    verdicts = [Verdict(Status.PASSED), Verdict(Status.INFRASTRUCTURE), Verdict(Status.TIMEOUT)]
    assert count(verdicts) == Counts(scored=2, passed=1, unscored=1)
    assert tally([verdicts]) == {"passed": 1, "timeout": 1, "infrastructure": 1}


def test_intervals_are_over_problems() -> None:
    single = interval([Counts(1, i % 2) for i in range(100)], 1)
    assert single.value == 0.5
    assert single.low == pytest.approx(0.4038, abs=1e-3)  # Wilson
    many = interval([Counts(10, i % 11) for i in range(110)], 1)
    assert many.low < many.value < many.high
    assert many.high - many.low == pytest.approx(2 * 1.96 * math.sqrt(0.1 / 110), rel=0.1)
