"""Two tiny models of each architecture merged by a recipe, reloaded by from_pretrained, every tensor compared.

No table of architectures is involved: nothing may be lost, whatever the names. The marked ones are those that mergekit
0.1.5 loses weights of or refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

transformers = pytest.importorskip("transformers")

from fusion_eval.merge.files import open_checkpoint  # noqa: E402
from fusion_eval.method.recipe import Recipe  # noqa: E402
from fusion_eval.modelpool.recipe_pool import RecipePool  # noqa: E402

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 128, **SIZE}
LANGUAGE = {"num_key_value_heads": 2, **TEXT}
VISION = {"image_size": 32, "patch_size": 8, **SIZE}
MOE = {"moe_intermediate_size": 16, "num_experts": 4}
SEQUENCE = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 128,
}
DEEPSEEK = {
    **LANGUAGE,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
T5 = {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
GPT_NEO = {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "intermediate_size": 64,
}
OPT = {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "ffn_dim": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 32,
}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
SPEECH = {
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
    **SIZE,
}
WHISPER = {**SEQUENCE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
QWEN_VL = {
    "text_config": {
        **LANGUAGE,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
    },
    "vision_config": {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 32,
        "num_heads": 4,
        "mlp_ratio": 2,
        "patch_size": 8,
    },
}
Spec = tuple[str, str, dict[str, Any]]
FAST: dict[str, Spec] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", LANGUAGE),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**LANGUAGE, "head_dim": 8}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**LANGUAGE, "num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", DEEPSEEK),  # the peer loses all routed experts
    "bert_mlm": ("BertConfig", "BertForMaskedLM", TEXT),  # the peer demands a pooler
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),  # the peer knows v1.1 only
    "vit": ("ViTConfig", "ViTForImageClassification", VISION),  # the peer loses 32 of 40 tensors
    "resnet": (
        "ResNetConfig",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    ),  # the peer fails
    "clip": ("CLIPConfig", "CLIPModel", {"text_config": TEXT, "vision_config": VISION}),  # the peer fails
    "llava": (
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {"text_config": {"model_type": "llama", **LANGUAGE}, "vision_config": VISION, "image_token_index": 5},
    ),  # the peer loses the whole language model
}
SLOW: dict[str, Spec] = {
    "mistral": ("MistralConfig", "MistralForCausalLM", LANGUAGE),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", LANGUAGE),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**LANGUAGE, "head_dim": 8}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**LANGUAGE, "head_dim": 8}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**LANGUAGE, "pad_token_id": 0}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {**LANGUAGE, **MOE, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {**LANGUAGE, **MOE, "head_dim": 8}),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM", GPT_NEO),
    "opt": ("OPTConfig", "OPTForCausalLM", OPT),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"vocab_size": 128, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),  # the peer fails
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": 128, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    ),
    "bert_cls": ("BertConfig", "BertForSequenceClassification", TEXT),
    "roberta_cls": ("RobertaConfig", "RobertaForSequenceClassification", TEXT),
    "deberta_v2": ("DebertaV2Config", "DebertaV2ForSequenceClassification", TEXT),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", {**TEXT, "pad_token_id": 0}),
    "electra": ("ElectraConfig", "ElectraForSequenceClassification", {**TEXT, "embedding_size": 32}),
    "bart": ("BartConfig", "BartForConditionalGeneration", SEQUENCE),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER),  # the peer fails
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", {**VISION, "mlp_ratio": 2}),  # the peer loses 16 of 45
    "deit": ("DeiTConfig", "DeiTForImageClassification", VISION),
    "swin": ("SwinConfig", "SwinForImageClassification", SWIN),
    "convnext": (
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    ),  # the peer fails
    "clip_vision": ("CLIPVisionConfig", "CLIPVisionModel", VISION),
    "siglip": ("SiglipConfig", "SiglipModel", {"text_config": TEXT, "vision_config": VISION}),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2ForCTC", SPEECH),
    "qwen2_vl": ("Qwen2VLConfig", "Qwen2VLForConditionalGeneration", QWEN_VL),  # the peer fails
}


def saved_pair(root: Path, spec: Spec) -> Any:
    """Two random models of an architecture in root/a and root/b, and their class."""
    config, name, settings = spec
    kind = getattr(transformers, name)
    for seed, folder in enumerate("ab"):
        torch.manual_seed(seed)
        kind(getattr(transformers, config)(**settings)).save_pretrained(root / folder)
    return kind


def check(root: Path, spec: Spec) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = saved_pair(root, spec)
    weights = {"a": 0.7, "b": 0.3}
    models = [{"model": str(root / name), "parameters": {"weight": weight}} for name, weight in weights.items()]
    recipe = root / "recipe.yml"
    recipe.write_text(yaml.safe_dump({"merge_method": "linear", "models": models}))
    method, pool = Recipe(str(recipe)), RecipePool(str(recipe))
    assert method.faults(pool) == []
    pool.save(method.apply(pool), root / "merged")

    first, second = open_checkpoint(root / "a"), open_checkpoint(root / "b")
    written = open_checkpoint(root / "merged")
    assert sorted(written) == sorted(first)
    for name in first:
        x, y = first[name], second[name]
        wanted = 0.7 * x.double() + 0.3 * y.double() if x.is_floating_point() else x.double()
        torch.testing.assert_close(written[name].double(), wanted, rtol=1e-5, atol=1e-6, msg=name)
    _, info = kind.from_pretrained(root / "merged", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]


@pytest.mark.parametrize("name", FAST)
def test_nothing_is_lost(tmp_path: Path, name: str) -> None:
    check(tmp_path, FAST[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_nothing_is_lost_of_more(tmp_path: Path, name: str) -> None:
    check(tmp_path, SLOW[name])


def test_the_survey_is_complete() -> None:
    assert len(FAST) + len(SLOW) == 38
