"""The place of language models inside the families of vision-language models, from names and shapes alone."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from fusion_eval.merge.checkpoint import StateDictCheckpoint  # noqa: E402
from fusion_eval.modelpool.part_match import match_part  # noqa: E402
from fusion_eval.modelpool.skeletons import described  # noqa: E402

FAMILIES = {
    "Llava": ("LlamaConfig", "model.language_model."), "LlavaOnevision": ("Qwen2Config", "model.language_model."),
    "Qwen2_5_VL": ("Qwen2Config", "model.language_model."), "Qwen3VL": ("Qwen3Config", "model.language_model."),
    "Gemma3": ("Gemma3TextConfig", "model.language_model."), "PaliGemma": ("GemmaConfig", "model.language_model."),
    "InternVL": ("Qwen2Config", "model.language_model."), "Idefics3": ("LlamaConfig", "model.text_model."),
    "Mistral3": ("MistralConfig", "model.language_model."),
}  # fmt: skip
OTHERS = ("model_type", "rope_scaling", "rope_parameters", "architectures", "dtype", "layer_types")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_language_model_of_a_family_is_found(family: str) -> None:
    """Models of the families' default sizes, without memory."""
    kind, place = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")()
    config.get_text_config().num_hidden_layers = 2
    with torch.device("meta"):
        whole = getattr(transformers, f"{family}ForConditionalGeneration")(config)
        text_kind = getattr(transformers, kind)
        known = text_kind().to_dict()
        given = whole.config.get_text_config().to_dict()
        values = {key: value for key, value in given.items() if key in known and key not in OTHERS}
        text = transformers.AutoModelForCausalLM.from_config(text_kind(**values))
    state = whole.state_dict(keep_vars=True)
    modules = [m for m in (whole.get_input_embeddings(), whole.get_output_embeddings()) if m is not None]
    rows = {id(parameter) for module in modules for parameter in module.parameters()}
    part = StateDictCheckpoint.of(text)
    found = match_part(described(whole), part, [name for name, tensor in state.items() if id(tensor) in rows])
    assert (found.file_prefix, found.model_prefix) == ("model.", place)
    assert set(found.left_out) <= {"lm_head.weight"}  # where the whole model ties its head and the other does not
    assert len(found.stored) + len(found.left_out) == len(part)
    lost = {name for name in described(whole) if name.startswith(place)} - set(found.stored)
    assert not lost
