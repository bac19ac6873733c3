"""Running statistics of a merge are those of what it sees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fusion_eval.errors import ConfigError
from fusion_eval.merge.files import open_checkpoint
from fusion_eval.method.simple_average import SimpleAverage
from fusion_eval.modelpool import ModulePool
from fusion_eval.program import FusionProgram
from fusion_eval.taskpool import DummyTaskPool


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def program(place: Path, setting: object, **changes: object) -> FusionProgram:
    pool = ModulePool(net(0), {"a": net(1), "b": net(2)})
    return FusionProgram(SimpleAverage(), pool, DummyTaskPool(), output=place / "run", recalibrate=setting, **changes)


def test_statistics_are_means_over_batches_of_what_the_layer_sees(tmp_path: Path) -> None:
    inputs = torch.randn(100, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    data = TensorDataset(inputs, torch.zeros(100))
    setting = {"dataset": data, "items": 96, "batch_size": 32}
    report = program(tmp_path, setting, save=tmp_path / "merged").run()
    saved = open_checkpoint(tmp_path / "merged")
    weight = (net(1)[0].weight + net(2)[0].weight) / 2
    bias = (net(1)[0].bias + net(2)[0].bias) / 2
    seen = (inputs[:96] @ weight.T + bias).detach().reshape(3, 32, 6)
    torch.testing.assert_close(saved["1.running_mean"], seen.mean(1).mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(saved["1.running_var"], seen.var(1).mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(saved["0.weight"], weight)
    assert any("estimated anew" in note for note in report.notes)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"items": 3}, "a mapping of dataset"),
        ({"dataset": [], "items": 1}, "recalibrate.items: 1"),
        ({"dataset": TensorDataset(torch.zeros(1, 4))}, "1 items; expected at least 2"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, setting: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        program(tmp_path, setting).run()


def test_a_network_without_statistics_is_told(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2) for _ in range(3)]
    pool = ModulePool(models[0], {"a": models[1], "b": models[2]})
    setting = {"dataset": TensorDataset(torch.zeros(8, 2))}
    run = FusionProgram(SimpleAverage(), pool, DummyTaskPool(), output=tmp_path / "run", recalibrate=setting)
    with pytest.raises(ConfigError, match="no running statistics"):
        run.run()
