from __future__ import annotations

import sys
from contextlib import suppress

import pytest
import torch

from fusion_eval.errors import AlignmentError, CheckpointError, OutputError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.lora import adapted
from fusion_eval.merge.lora_extract import extract_lora, factors


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (10, 6), "norm.weight": (6,), "head.weight": (10, 6)}
    for layer in range(2):
        shapes |= {f"layers.{layer}.up.weight": (8, 6), f"layers.{layer}.down.weight": (6, 8)}
        shapes |= {f"layers.{layer}.norm.weight": (6,), f"layers.{layer}.up.bias": (8,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def low_rank(rank: int, shape: tuple[int, int], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape[0], rank, generator=generator) @ torch.randn(rank, shape[1], generator=generator)


def test_a_change_of_low_rank_comes_back(tmp_path):
    base, tuned = state(), state()
    tuned["layers.0.up.weight"] = tuned["layers.0.up.weight"] + low_rank(2, (8, 6), 1)
    tuned["layers.1.down.weight"] = tuned["layers.1.down.weight"] + low_rank(1, (6, 8), 2)
    tuned["layers.1.norm.weight"] = tuned["layers.1.norm.weight"] + 1
    tuned["head.weight"] = tuned["head.weight"] + 0.5
    found = extract_lora(StateDictCheckpoint(base), StateDictCheckpoint(tuned), rank=2, epsilon=1e-5)
    assert found.config["target_modules"] == ["layers.0.up", "layers.1.down"]
    assert found.config["rank_pattern"] == {"layers.1.down": 1}
    assert found.lost < 1e-5
    found.save(tmp_path / "adapter")
    result = adapted(StateDictCheckpoint(base), [tmp_path / "adapter"])
    for name, tensor in tuned.items():
        torch.testing.assert_close(result[name], tensor, rtol=1e-5, atol=1e-5)
    with pytest.raises(OutputError, match="exists"):
        found.save(tmp_path / "adapter")


def test_the_error_is_that_of_the_best_approximation():
    delta = torch.randn(20, 12, generator=torch.Generator().manual_seed(3))
    up, down, lost = factors(delta, 5)
    values = torch.linalg.svdvals(delta)
    assert lost == pytest.approx(values[5:].square().sum().item(), rel=1e-4)
    assert (delta - up @ down).square().sum().item() == pytest.approx(lost, rel=1e-4)


def test_weights_stored_transposed(tmp_path):
    base = {"layers.0.c.weight": torch.zeros(6, 8), "layers.0.c.bias": torch.zeros(8)}
    tuned = {**base, "layers.0.c.weight": low_rank(1, (6, 8), 4)}
    found = extract_lora(StateDictCheckpoint(base), StateDictCheckpoint(tuned), rank=1)
    assert found.config["fan_in_fan_out"] is True
    found.save(tmp_path / "adapter")
    result = adapted(StateDictCheckpoint(base), [tmp_path / "adapter"])
    torch.testing.assert_close(result["layers.0.c.weight"], tuned["layers.0.c.weight"], rtol=1e-5, atol=1e-5)


def test_a_module_whose_bias_changed_is_kept_whole():
    base, tuned = state(), state()
    for part in ("weight", "bias"):
        tuned[f"layers.0.up.{part}"] = tuned[f"layers.0.up.{part}"] + 1
    found = extract_lora(StateDictCheckpoint(base), StateDictCheckpoint(tuned))
    assert found.config["target_modules"] == []
    assert found.config["modules_to_save"] == ["up"]


def test_what_cannot_be_extracted():
    same = StateDictCheckpoint(state())
    with pytest.raises(CheckpointError, match="no tensor differs"):
        extract_lora(same, StateDictCheckpoint(state()))
    with pytest.raises(AlignmentError, match="lacks"):
        extract_lora(same, StateDictCheckpoint({"embed.weight": torch.zeros(10, 6)}))


@pytest.mark.filterwarnings("ignore::UserWarning:hydra")
def test_the_program(tmp_path, monkeypatch):
    from fusion_eval.cli import main
    from tests.tiny import tiny_llama

    monkeypatch.chdir(tmp_path)
    for variant, name in enumerate(("base", "a")):
        tiny_llama(tmp_path / name, variant)
    words = ["program=extract_lora", "modelpool=huggingface", "modelpool.base=base", "modelpool.experts={a: a}"]
    words += ["modelpool.auto_class=LlamaForCausalLM", "taskpool=dummy", "save=adapters", "program.rank=8"]
    monkeypatch.setattr(sys, "argv", ["fusion_eval", *words])
    with suppress(SystemExit):
        main()
    assert (tmp_path / "adapters" / "a" / "adapter_model.safetensors").is_file()
