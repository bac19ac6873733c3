from __future__ import annotations

import pytest

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import Settings
from fusion_eval.stats.settings import settings_of


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"test": "anova"}, "'anova'; expected one of auto, ttest_rel"),
        ({"correction": "sidak"}, "one of holm, bonferroni, fdr_bh, none"),
        ({"interval": "basic"}, "percentile, bca"),
        ({"unit": "item"}, "Did you mean 'items'"),
        ({"family": "task"}, "metric, all"),
        ({"alpha": 5}, "between 0 and 1"),
        ({"power": 0}, "between 0 and 1"),
        ({"resamples": 10}, "at least 100"),
        ({"rope": -0.1}, "positive"),
        ({"rope": {"f1": 0.0}}, "rope f1"),
    ],
)
def test_bad_settings(arguments, words):
    with pytest.raises(StatisticsError) as error:
        Settings(**arguments)
    assert words in str(error.value)


def test_all_faults_come_at_once():
    with pytest.raises(StatisticsError) as error:
        Settings(test="anova", correction="sidak", alpha=2.0)
    assert len(error.value.faults) == 3


def test_unknown_arguments_are_named():
    with pytest.raises(StatisticsError, match="Did you mean 'correction'"):
        settings_of({"corection": "holm"})


def test_rope_per_metric():
    assert Settings(rope=0.1).rope_of("f1") == 0.1
    assert Settings(rope={"f1": 0.2}).rope_of("f1") == 0.2
    assert Settings(rope={"f1": 0.2}).rope_of("accuracy") is None
