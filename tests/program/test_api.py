"""merge and evaluate from Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fusion_eval
from fusion_eval.errors import AlignmentError, ConfigError, FusionEvalError


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def test_modules_give_a_new_module_and_stay_as_they_were() -> None:
    base, experts = net(0), {"a": net(1), "b": net(2)}
    before = {
        name: {k: v.clone() for k, v in model.state_dict().items()} for name, model in {"base": base, **experts}.items()
    }
    merged = fusion_eval.merge(experts, base, method="task_arithmetic", scaling=0.5)
    assert isinstance(merged, nn.Module)
    expected = base[0].weight + 0.5 * (experts["a"][0].weight + experts["b"][0].weight - 2 * base[0].weight)
    assert torch.allclose(merged[0].weight, expected)
    for name, model in {"base": base, **experts}.items():
        assert all(torch.equal(before[name][k], v) for k, v in model.state_dict().items())


def test_state_dicts_and_paths_give_checkpoints(tmp_path: Path) -> None:
    states = [net(seed).state_dict() for seed in (1, 2)]
    merged = fusion_eval.merge(states, method="simple_average")
    assert torch.allclose(merged["0.weight"], (states[0]["0.weight"] + states[1]["0.weight"]) / 2)
    fusion_eval.merge(states, method="simple_average", save=tmp_path / "merged")
    again = fusion_eval.merge([str(tmp_path / "merged"), str(tmp_path / "merged")], method="simple_average")
    assert torch.equal(again["0.weight"], merged["0.weight"])


def test_errors() -> None:
    with pytest.raises(ConfigError, match=r"method: no option 'tie'.*Did you mean 'ties'"):
        fusion_eval.merge([net(0)], net(1), method="tie")
    with pytest.raises(ConfigError, match=r"method.scalin: TaskArithmetic takes no 'scalin'.*Did you mean 'scaling'"):
        fusion_eval.merge([net(0)], net(1), scalin=1)
    with pytest.raises(ConfigError, match="no base model, which TaskArithmetic needs"):
        fusion_eval.merge([net(0)])
    with pytest.raises(ConfigError, match="models of several kinds"):
        fusion_eval.merge([net(0), net(1).state_dict()], method="simple_average")
    with pytest.raises(ConfigError, match="no experts"):
        fusion_eval.merge([], net(0))
    with pytest.raises(FusionEvalError, match=r"lacks 1 of \d+ tensors"):
        fusion_eval.merge(
            [net(0), nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3, bias=False))],
            method="simple_average",
        )
    assert issubclass(AlignmentError, FusionEvalError)


def test_evaluate_by_the_pool_s_name() -> None:
    from fusion_eval.assets.digits import class_codes, load_encoder
    from fusion_eval.task.heads import LinearHead

    result = fusion_eval.evaluate(
        load_encoder("edges"),
        "digits",
        name="edges",
        limit=100,
        progress=False,
        heads={"upright": LinearHead(class_codes("upright"))},
        test_datasets={"upright": {"_target_": "fusion_eval.assets.digits.DigitsDataset", "view": "upright"}},
    )
    assert [task.name for task in result.tasks] == ["upright"]
    assert result.tasks[0].n == 100
    assert result.tasks[0].partial
