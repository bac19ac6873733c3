from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fusion_eval.errors import AlignmentError, CheckpointError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.lora import adapted


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(6, 8), nn.Linear(6, 4, bias=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(6, 5)


def write_adapter(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4} | config))
    save_file(
        {f"base_model.model.{name}": t.contiguous() for name, t in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    return folder


def factors(path: str, rows: int, columns: int, rank: int = 2, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{path}.lora_A.weight": torch.randn(rank, columns, generator=generator),
        f"{path}.lora_B.weight": torch.randn(rows, rank, generator=generator),
    }


@pytest.fixture
def base() -> StateDictCheckpoint:
    torch.manual_seed(0)
    return StateDictCheckpoint.of(Model().requires_grad_(False))


Q = "layers.0.q_proj"


def test_the_formula_and_nothing_else_changes(tmp_path: Path, base: StateDictCheckpoint) -> None:
    low = factors(Q, 8, 6)
    merged = adapted(base, [write_adapter(tmp_path / "a", low)])
    expected = base[f"{Q}.weight"] + 2 * low[f"{Q}.lora_B.weight"] @ low[f"{Q}.lora_A.weight"]
    torch.testing.assert_close(merged[f"{Q}.weight"], expected)
    assert list(merged) == list(base)
    assert all(torch.equal(merged[name], base[name]) for name in base if name != f"{Q}.weight")


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 6}}, 3.0),
        ({"alpha_pattern": {"layers.1.q_proj": 6}}, 2.0),
        ({"alpha_pattern": {r"layers\.\d\.q_proj": 8}}, 4.0),
    ],
)
def test_scaling(tmp_path: Path, base: StateDictCheckpoint, config: dict[str, Any], scale: float) -> None:
    low = factors(Q, 8, 6)
    merged = adapted(base, [write_adapter(tmp_path / "a", low, **config)])
    update = low[f"{Q}.lora_B.weight"] @ low[f"{Q}.lora_A.weight"]
    torch.testing.assert_close(merged[f"{Q}.weight"] - base[f"{Q}.weight"], scale * update)


def test_several_weighted_adapters_add_up_in_float32(tmp_path: Path, base: StateDictCheckpoint) -> None:
    first, second = factors(Q, 8, 6), factors(Q, 8, 6, 1, seed=1)
    paths = [write_adapter(tmp_path / "a", first), write_adapter(tmp_path / "b", second, r=1)]
    half = StateDictCheckpoint({name: tensor.bfloat16() for name, tensor in base.items()})
    merged = adapted(half, {str(paths[0]): 0.5, str(paths[1]): -1.0})
    update = first[f"{Q}.lora_B.weight"] @ first[f"{Q}.lora_A.weight"]
    update = update - 4 * second[f"{Q}.lora_B.weight"] @ second[f"{Q}.lora_A.weight"]
    expected = (half[f"{Q}.weight"].float() + update).bfloat16()
    assert merged[f"{Q}.weight"].dtype == torch.bfloat16
    torch.testing.assert_close(merged[f"{Q}.weight"], expected, rtol=1e-2, atol=0)


def test_pieces_are_the_tensor(tmp_path: Path) -> None:
    base = StateDictCheckpoint({"w.weight": torch.randn(700, 512)})
    merged = adapted(base, [write_adapter(tmp_path / "a", factors("w", 700, 512))])
    pieces = list(merged.pieces("w.weight"))
    assert len(pieces) > 1
    assert torch.equal(torch.cat(pieces).reshape(700, 512), merged["w.weight"])


def test_whole_tensors_replace_and_untie(tmp_path: Path) -> None:
    base = StateDictCheckpoint({"a.weight": torch.zeros(2, 2), "b": torch.ones(1)}, tied={"head.weight": "a.weight"})
    folder = write_adapter(tmp_path / "a", {"head.weight": torch.ones(3, 2)})
    merged = adapted(base, [folder])
    assert merged.spec("head.weight").shape == (3, 2)
    assert dict(merged.tied) == {}
    assert sorted(merged) == ["a.weight", "b", "head.weight"]
    assert len(merged) == 3
    assert torch.equal(merged["head.weight"], torch.ones(3, 2))


def test_names_may_lack_the_leading_part(tmp_path: Path) -> None:
    base = StateDictCheckpoint({"h.0.q.weight": torch.zeros(8, 6)})
    merged = adapted(base, [write_adapter(tmp_path / "a", factors("transformer.h.0.q", 8, 6))])
    assert merged["h.0.q.weight"].abs().sum() > 0


def refusal(base: StateDictCheckpoint, *folders: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        adapted(base, list(folders))
    return str(caught.value)


def test_what_does_not_fit_is_one_error(tmp_path: Path, base: StateDictCheckpoint) -> None:
    tensors = factors("layers.0.q_prj", 8, 6) | factors(Q, 7, 6) | {"layers.1.v_proj.lora_A.weight": torch.ones(2, 6)}
    with pytest.raises(AlignmentError) as caught:
        adapted(base, [write_adapter(tmp_path / "a", tensors)])
    message = str(caught.value)
    assert "Did you mean 'layers.0.q_proj.weight'" in message
    assert "an update of shape (7, 6); expected one that fits (8, 6)" in message
    assert "module 'layers.1.v_proj': only A; expected both factors" in message


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"peft_type": "IA3"}, "peft_type IA3"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base too"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"lora_bias": True}, "lora_bias"),
    ],
)
def test_kinds_that_cannot_be_merged_are_refused(
    tmp_path: Path, base: StateDictCheckpoint, config: dict[str, Any], expected: str
) -> None:
    assert expected in refusal(base, write_adapter(tmp_path / "a", factors(Q, 8, 6), **config))


def test_dora_beside_others_and_missing_magnitudes_are_refused(tmp_path: Path, base: StateDictCheckpoint) -> None:
    low = factors(Q, 8, 6)
    dora = write_adapter(tmp_path / "d", low | {f"{Q}.lora_magnitude_vector": torch.ones(8)}, use_dora=True)
    assert "DoRA adapter beside others" in refusal(base, dora, write_adapter(tmp_path / "l", low))
    assert "both factors" in refusal(base, write_adapter(tmp_path / "n", low, use_dora=True))


def test_dora_of_an_embedding_is_refused(tmp_path: Path, base: StateDictCheckpoint) -> None:
    low = {"embed.lora_embedding_A": torch.ones(2, 10), "embed.lora_embedding_B": torch.ones(6, 2)}
    low["embed.lora_magnitude_vector"] = torch.ones(6)
    assert "DoRA of an embedding" in refusal(base, write_adapter(tmp_path / "a", low, use_dora=True))


@pytest.mark.parametrize("dora", [False, True])
def test_equal_to_peft_where_weights_are_stored_transposed(tmp_path: Path, dora: bool) -> None:
    peft = pytest.importorskip("peft")
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(3)
    model = nn.Sequential(conv1d(7, 5))  # a weight of shape (5, 7): inputs first
    base = StateDictCheckpoint({name: tensor.clone() for name, tensor in model.state_dict().items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0"], fan_in_fan_out=True, use_dora=dora)
        wrapped = peft.get_peft_model(model, config)
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        wrapped.save_pretrained(tmp_path / "adapter")
        expected = wrapped.merge_and_unload().state_dict()
    merged = adapted(base, [tmp_path / "adapter"])
    torch.testing.assert_close(merged["0.weight"], expected["0.weight"], rtol=1e-5, atol=1e-6)


def test_folders_that_are_no_adapters(tmp_path: Path, base: StateDictCheckpoint) -> None:
    assert "no adapter_config.json" in refusal(base, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "no adapter weights" in refusal(base, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"q_proj": 5}},
        {"use_dora": True, "target_modules": ["q_proj", "v_proj", "conv"]},
        {"modules_to_save": ["head"]},
    ],
)
def test_equal_to_peft(tmp_path: Path, options: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    model = Model()
    base = StateDictCheckpoint({name: tensor.clone() for name, tensor in model.state_dict().items()})
    settings = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "conv", "embed"]} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = peft.get_peft_model(model, peft.LoraConfig(**settings))
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_" in name or "modules_to_save" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        wrapped.save_pretrained(tmp_path / "adapter")
        expected = wrapped.merge_and_unload().state_dict()
    merged = adapted(base, [tmp_path / "adapter"])
    assert sorted(merged) == sorted(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-5, atol=1e-6)
