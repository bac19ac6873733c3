"""BLEU and chrF of many sums at once are torchmetrics' one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.text import BLEUScore, CHRFScore

from fusion_eval.evaluation.statistics import load_states, state_row
from fusion_eval.forms.texts import text_formula

TEXTS = [f"a text of {i} words and some {'more' * (i % 3)} of them here" for i in range(9)]
TRUTH = [[f"the text of {i} words with some {'more' * (i % 2)} of them there", "a text"] for i in range(9)]


@pytest.mark.parametrize(
    "metric",
    [BLEUScore(), BLEUScore(n_gram=2, smooth=True), CHRFScore(n_word_order=0), CHRFScore(n_word_order=2, beta=3.0)],
    ids=["bleu", "smooth", "chrf", "chrf++"],
)
def test_sums_give_torchmetrics_values(metric: Any) -> None:
    rows = []
    for text, truth in zip(TEXTS, TRUTH, strict=True):
        metric.reset()
        metric.update([text], [truth])
        rows.append(state_row(metric).numpy())
    weights = np.random.default_rng(0).multinomial(9, np.full(9, 1 / 9), size=20)
    sums = np.concatenate([weights @ np.stack(rows), np.zeros((1, len(rows[0])))])
    formula = text_formula(metric)
    assert formula is not None
    found = formula(sums)
    for row, value in zip(sums, found, strict=True):
        load_states(metric, torch.from_numpy(row))
        assert value == pytest.approx(float(metric.compute()), abs=1e-6)
    assert len(set(found.tolist())) > 10
