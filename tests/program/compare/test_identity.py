"""What a cache knows models and functions by: anything that changes what they give changes it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusion_eval import compare
from fusion_eval.program.compare.identity import Unknown, identity, lasting_source
from fusion_eval.program.study.cells import code_of
from fusion_eval.program.study.merges import merge_cell

DATA = [(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)]


class Scaled(nn.Module):
    """Logits times a plain number, which is no weight, after a function."""

    def __init__(self, scale: Any = 1.0, then: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale, self.then = nn.Linear(4, 3), scale, then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        logits = self.linear(x) * self.scale
        return logits if self.then is None else self.then(logits)


def turned(shift: int) -> Any:
    return lambda logits: logits.roll(shift, -1)


def test_plain_attributes_and_functions_tell_models_apart() -> None:
    same = {identity(Scaled()), identity(Scaled())}
    others = {identity(m) for m in (Scaled(2.0), Scaled([1, 2]), Scaled(then=turned(1)), Scaled(then=turned(2)))}
    assert len(same) == 1
    assert len(same | others) == 5


def test_models_that_differ_in_a_number_are_both_evaluated(tmp_path: Path) -> None:
    models = {"plain": Scaled(), "turned": Scaled(-1.0)}
    options: dict[str, Any] = {"num_classes": 3, "metrics": ["accuracy"], "resamples": 200}
    assert compare(models, DATA, cache=tmp_path, **options).data.equals(compare(models, DATA, **options).data)


def test_what_cannot_be_told_is_not_cached() -> None:
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    for strange in (hooked, Scaled(then=object()), Scaled(iter([]))):
        with pytest.raises(Unknown):
            identity(strange)
    box: list[Any] = []
    box.append(box)
    with pytest.raises(Unknown):
        identity(box)


def test_a_training_function_is_known_by_what_is_bound_to_it() -> None:
    def train(seed: int, width: int = 2) -> int:
        return seed * width

    assert lasting_source(functools.partial(train, width=3)) != lasting_source(functools.partial(train, width=4))
    stream = iter([])
    assert lasting_source(lambda seed: (stream, seed))


def test_a_changed_default_of_a_method_makes_its_cells_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config" / "method" / "mine.yaml"
    file.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    cell = functools.partial(merge_cell, method="mine")
    codes = []
    for scaling in (0.3, 0.4, 0.3):
        file.write_text(f"_target_: fusion_eval.method.TaskArithmetic\nscaling: {scaling}\n")
        codes.append(code_of(cell))
    assert codes[0] == codes[2] != codes[1]
