from __future__ import annotations

import numpy as np
import pytest

from fusion_eval.errors import DataError
from fusion_eval.harness import scoring
from fusion_eval.harness.request import RollingScore

RESULTS = [(-4.0, False), (-3.0, True), (-9.0, False)]
CHOICES = ["a", "bbbbbb", "cc"]


def test_multiple_choice() -> None:
    names = ["acc", "acc_norm", "acc_bytes", "exact_match", "f1", "mcc", "brier_score", "likelihood"]
    values = scoring.multiple_choice(RESULTS, CHOICES, 1, names)
    assert (values["acc"], values["acc_norm"], values["exact_match"]) == (1.0, 1.0, 1)
    assert values["f1"] == values["mcc"] == (1, 1)
    assert values["brier_score"][1] == pytest.approx(np.exp([-4, -3, -9]) / np.exp([-4, -3, -9]).sum())
    assert values["likelihood"] == (1, (-4.0, -3.0, -9.0))


def test_several_golds_and_none() -> None:
    values = scoring.multiple_choice(RESULTS, CHOICES, [0, 1], ["acc", "exact_match"])
    assert values == {"acc": 1.0, "exact_match": 1}
    values = scoring.multiple_choice(RESULTS, CHOICES, scoring.NO_GOLD, ["acc", "exact_match"])
    assert values == {"acc": 0.0, "exact_match": 0}


def test_golds() -> None:
    assert scoring.choice_gold(5, CHOICES) == scoring.NO_GOLD
    assert scoring.choice_gold("bbbbbb", CHOICES) == 1
    assert scoring.choice_gold("2", CHOICES) == scoring.NO_GOLD
    assert scoring.choice_gold([0, 7], CHOICES) == [0, scoring.NO_GOLD]


def test_mutual_information_divides_by_the_unconditional_probability() -> None:
    results = [(-1.0, False), (-2.0, False), (-1.0, False), (-9.0, False)]
    assert scoring.multiple_choice(results, ["x", "y"], 1, ["acc", "acc_mutual_info"]) == {
        "acc": 0.0, "acc_mutual_info": 1.0,
    }  # fmt: skip


def test_lengths_of_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="empty choice"):
        scoring.multiple_choice(RESULTS[:2], ["", "b"], 0, ["acc_norm"])
    with pytest.raises(DataError, match="no choices"):
        scoring.multiple_choice([], [], 0, ["acc"])


def test_rolling_counts() -> None:
    score = RollingScore(-6.0, 3)
    values = scoring.rolling(score, 2, 9, ["word_perplexity", "bits_per_byte", "perplexity"])
    assert values == {"word_perplexity": (-6.0, 2), "bits_per_byte": (-6.0, 9), "perplexity": (-6.0, 3)}


def test_the_first_of_several_continuations_is_the_right_one() -> None:
    assert scoring.ranked([(-1.0, False), (-2.0, True)], ["acc", "perplexity"]) == {"acc": 1.0, "perplexity": -1.0}
