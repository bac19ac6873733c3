"""Intervals of one model's metrics: inside the metric's bounds, about as wide whichever way they are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fusion_eval.evaluation.measure import measure
from fusion_eval.forms import measured_forms
from fusion_eval.forms.measured_forms import bounds_of, forms_of, interval_of_form
from fusion_eval.stats import interval_of
from tests.task.measuring import rows_of
from tests.task.tables import Table, loader, noise


def test_means_have_the_interval_of_means() -> None:
    scores = np.random.default_rng(0).random(40)
    assert interval_of_form(scores) == interval_of(scores)


@pytest.mark.parametrize("spread", [0.2, 2.0])
def test_fast_intervals_are_those_of_the_bootstrap(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(900) % 3
    rows, step = rows_of(
        "classification", Table(nn.functional.one_hot(labels, 3) + noise(0, (900, 3), spread)), loader(labels), 3
    )
    measured = measure(rows, step.task, step.battery, "t")
    forms = forms_of(rows, measured, step.task, step.battery)
    for name in ("f1", "auroc", "precision"):
        bounds = bounds_of(step.battery[name])
        assert bounds == (0.0, 1.0)
        form = forms[name]
        assert form is not None
        slow = interval_of_form(form, bounds=bounds)
        with monkeypatch.context() as patch:
            patch.setattr(measured_forms, "_MANY_ITEMS", 10)
            fast = interval_of_form(form, bounds=bounds)
        assert 0 < fast.low < fast.value < fast.high < 1 or fast.value == 1.0
        assert fast.high - fast.low == pytest.approx(slow.high - slow.low, rel=0.2, abs=1e-4)
