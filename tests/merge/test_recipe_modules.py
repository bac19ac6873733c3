"""Which tensors mergekit's names of modules stand for."""

from __future__ import annotations

import pytest
import torch

from fusion_eval.errors import ConfigError
from fusion_eval.merge.checkpoint import StateDictCheckpoint
from fusion_eval.merge.recipe_modules import modules_of
from fusion_eval.merge.recipe_reader import parse_recipe

GEMMA = {
    "text_decoder": ["model.language_model.layers.0.w", "lm_head.weight"],
    "vision_tower": ["model.vision_tower.vision_model.encoder.layers.0.w"],
    "multi_modal_projector": ["model.multi_modal_projector.w"],
}
QWEN = {
    "text_decoder": ["model.layers.0.w", "model.norm.weight", "lm_head.weight"],
    "vision_tower": ["visual.blocks.0.w", "visual.patch_embed.w"],
    "multi_modal_projector": ["visual.merger.mlp.0.weight"],
}
WHISPER = {"decoder": ["model.decoder.layers.0.w", "proj_out.weight"], "encoder": ["model.encoder.layers.0.w"]}
T5 = {"decoder": ["decoder.block.0.w", "lm_head.weight"], "encoder": ["encoder.block.0.w"], "shared": ["shared.weight"]}
OURS = {"visual": ["visual.blocks.0.w"], "default": ["model.layers.0.w", "lm_head.weight"]}


def split(parts, names):
    text = "merge_method: passthrough\nmodules:\n" + "".join(f"  {part}: {{models: [a]}}\n" for part in parts)
    recipe = parse_recipe(text).documents[0]
    model = StateDictCheckpoint({name: torch.zeros(1) for name in names})
    return {
        module.name: list(next(iter(found.values()))) for module, found in modules_of(recipe, {recipe.models[0]: model})
    }


@pytest.mark.parametrize("parts", [GEMMA, QWEN, WHISPER, T5, OURS])
def test_every_tensor_is_in_its_module(parts):
    found = split(parts, [name for names in parts.values() for name in names])
    assert {module: sorted(names) for module, names in found.items()} == {m: sorted(n) for m, n in parts.items()}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (["encoder"], "tensors of no module: decoder.w"),
        (["encoder", "w"], "tensors of several modules"),
        (["decoder", "encoder", "tower"], "no tensors of a module 'tower'"),
    ],
)
def test_what_fits_no_module_or_several(parts, told):
    with pytest.raises(ConfigError, match=told):
        split(parts, ["encoder.w", "decoder.w"])
