from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fusion_eval.errors import ConfigError, EvaluationError
from fusion_eval.task.heads import LinearHead, ZeroShotHead, linear_heads

FEATURES = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def test_linear_head_is_an_affine_map():
    weight, bias = torch.randn(3, 4), torch.randn(3)
    head = LinearHead(weight, bias, "digits")
    torch.testing.assert_close(head(FEATURES), FEATURES @ weight.T + bias)
    assert head.num_classes == 3
    assert not list(head.parameters())  # frozen: it does not count as the model's


def test_linear_head_computes_in_its_own_dtype():
    assert LinearHead(torch.ones(3, 4))(FEATURES.half()).dtype == torch.float32
    assert LinearHead(torch.ones(3, 4).half())(FEATURES).dtype == torch.float32


def test_zero_shot_head_is_scaled_cosine():
    texts, projection = torch.randn(3, 6), torch.randn(6, 4)
    logits = ZeroShotHead(texts, 100.0, projection)(FEATURES)
    expected = 100 * F.cosine_similarity((FEATURES @ projection.T)[:, None], texts[None], dim=-1)
    torch.testing.assert_close(logits, expected)


def test_zero_shot_head_without_projection():
    logits = ZeroShotHead(torch.eye(4), 1.0)(FEATURES)
    torch.testing.assert_close(logits, F.normalize(FEATURES, dim=-1))


def test_heads_take_a_models_whole_output():
    head = LinearHead(torch.ones(2, 4))
    torch.testing.assert_close(head(SimpleNamespace(pooler_output=FEATURES)), head(FEATURES))


def test_features_of_another_width_name_the_task():
    with pytest.raises(EvaluationError, match=r"head 'dtd': features of shape \(5, 4\); expected \(items, 9\)"):
        LinearHead(torch.ones(3, 9), name="dtd")(FEATURES)


def test_linear_heads_reads_both_spellings():
    heads = linear_heads({"a": torch.ones(2, 4), "b.weight": torch.ones(3, 4), "b.bias": torch.ones(3)})
    assert sorted(heads) == ["a", "b"]
    assert heads["a"].bias is None
    assert heads["b"].num_classes == 3
    torch.testing.assert_close(heads["b"](FEATURES), FEATURES.sum(1, keepdim=True).expand(5, 3) + 1)


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"head 'a': shape \(4,\)"):
        linear_heads({"a": torch.ones(4)})
    with pytest.raises(ConfigError, match=r"bias: shape \(2,\); expected \(3,\)"):
        LinearHead(torch.ones(3, 4), torch.ones(2))
    with pytest.raises(ConfigError, match=r"projection: 5 rows; expected 6"):
        ZeroShotHead(torch.ones(3, 6), 1.0, torch.ones(5, 4))
