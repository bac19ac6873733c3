"""Recipes as people publish them (names shortened, layers scaled to eight), and the tiny models that they merge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.merge.recipe_models import SPREAD, noise, write_model, write_tokenizer

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "recipe"
MODELS = ("base", *(f"m{number}" for number in range(8)))
LAYERS, KEPT, STEP = 8, 3, 7919
ADAPTED = {"self_attn.q_proj": (64, 64), "mlp.down_proj": (64, 128)}


def recipes() -> dict[str, str]:
    """{name: text} of the recipes."""
    blocks = re.split(r"^=== ", (FOLDER / "wild.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {name.strip(): text for name, _, text in (block.partition("\n") for block in blocks)}


def in_float32(text: str) -> str:
    """A recipe of the same weights in float32, with nothing drawn at random."""
    text = re.sub(r"^(dtype|out_dtype): .*$", "", text, flags=re.MULTILINE)
    drawn = re.search(r"merge_method: (dare|della)", text)
    return re.sub(r"density: [\d.]+", "density: 1.0", text) if drawn else text


def write_models(root: Path) -> Path:
    """Nine Llamas of eight layers and three adapters of the first."""
    SPREAD.update({f"m{number}": 0.003 + 0.001 * number for number in range(8)})
    for name in MODELS:
        write_tokenizer(write_model(root / name, name, layers=LAYERS), ["<x0>"], 128)
    for number in range(3):
        folder = root / f"lora{number}"
        folder.mkdir(exist_ok=True)
        save_file(dict(_adapter(number)), folder / "adapter_model.safetensors")
        said = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none"}
        said |= {"target_modules": ["q_proj", "down_proj"], "base_model_name_or_path": "base"}
        (folder / "adapter_config.json").write_text(json.dumps(said))
    return root


def _adapter(number: int) -> Iterable[tuple[str, Tensor]]:
    for layer in range(LAYERS):
        for name, (rows, columns) in ADAPTED.items():
            key = f"base_model.model.model.layers.{layer}.{name}"
            for part, shape in (("A", (4, columns)), ("B", (rows, 4))):
                yield f"{key}.lora_{part}.weight", noise(shape, f"lora{number}|{key}|{part}", 0.05)


def looked_at(names: Iterable[str]) -> list[str]:
    """Some tensors of a merge: first, last, and between."""
    numbers = sorted({int(found[1]) for name in names if (found := re.search(r"layers\.(\d+)\.", name))})
    middle = f"model.layers.{numbers[len(numbers) // 2]}."
    chosen = [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.q_proj.weight",
    ]
    return [*chosen, f"{middle}mlp.down_proj.weight", f"model.layers.{numbers[-1]}.input_layernorm.weight"]


def values(tensor: Tensor) -> list[float]:
    """A few of a tensor's values, and its largest magnitude."""
    flat = tensor.double().reshape(-1)
    return [*flat[torch.arange(KEPT) * STEP % flat.numel()].tolist(), float(flat.abs().max())]
